"""The test EC2: a layer in front of moto that has what moto lacks, with boxes as its machines if they are wanted.

`python -m support.ec2 --port 0 --state DIR` prints one line of JSON (`endpoint`, …) and serves until it is ended.
Orders: `POST /_test/<op>` with JSON (`control.py` lists them); every call so far: `GET /_test/log`.
From a test: `support.ec2.client.serve(folder)`.
"""
