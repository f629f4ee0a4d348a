"""The process that outlives the owner of a bed and then takes the bed down: a test that is killed
leaves nothing behind.

    warden.py BED"""

import sys

import life

if __name__ == "__main__":
    life.ward(sys.argv[1])
