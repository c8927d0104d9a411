"""Launch the stand-in server: ``python -m sglang.launch_server --model-path M --port P``."""

import sys

from sglang.standin.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
