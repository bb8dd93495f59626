"""What a run is asked to be: typed settings, and a strict way to read them.

``schema`` says what can be set; ``resolve`` turns a TOML file and command-line overrides into one
frozen ``Config``, or into one refusal that lists every problem.
"""
