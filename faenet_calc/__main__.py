"""`python -m faenet_calc` is the command line."""

from faenet_calc.cli import main

main(prog_name="faenet-calc")
