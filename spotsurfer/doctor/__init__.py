"""`spotsurfer doctor`: checks this machine and names the remedy for each problem."""
