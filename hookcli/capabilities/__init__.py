"""What hookcli can do beyond looking at one run: a folder for each capability, which nothing outside it imports."""
