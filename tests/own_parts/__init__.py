"""Parts of a user's own, as docs/extending.md shows them: nothing in Offbeat knows them."""
