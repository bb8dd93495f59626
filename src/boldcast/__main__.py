"""``python -m boldcast`` is ``boldcast``; torchrun starts it this way, too."""

from boldcast.cli import main

if __name__ == "__main__":
    main()
