"""The console commands. Heavy imports happen inside the commands, so that --help answers at once."""
