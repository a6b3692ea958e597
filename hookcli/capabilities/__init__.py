"""What hookcli can do beyond looking at one run: a folder for each capability, which nothing outside it imports."""

import hookcli.table  # noqa: F401  # it takes the columns of all capabilities, before a file of one is imported
