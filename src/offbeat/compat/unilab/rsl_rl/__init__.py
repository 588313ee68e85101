"""The models of rsl_rl that UniLab's APPO learner takes."""
