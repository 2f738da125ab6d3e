"""Small things that many parts use: units, plug-ins, logs, errors in what users wrote."""
