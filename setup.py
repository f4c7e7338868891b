"""The packages of a wheel: those under ssl_vit/, and recipes/, which becomes ssl_vit.recipes.

pyproject.toml says all else; its finder of packages knows no folder with another name.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["ssl_vit*"]), "ssl_vit.recipes"],
    # at the top of a checkout, inside the package when installed
    package_dir={"ssl_vit.recipes": "recipes"},
)
