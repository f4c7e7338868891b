"""Set what pyproject.toml cannot say: the packages, and the README of a package index.

The packages are those in ssl_vit/, and recipes/, which is installed as ssl_vit.recipes.
"""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)]*)\)")
RELATIVE_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)]*)\)")


def readme_for_an_index(readme: str, repository: str | None) -> str:
    """Return the README with links and images that work outside the repository.

    Args:
        readme: Text of README.md.
        repository: Address of the repository, to which relative links then lead. None removes
            relative images, and keeps only the text of relative links.
    """
    if repository is None:
        without_images = RELATIVE_IMAGE.sub("", readme)
        return RELATIVE_LINK.sub(r"\1", without_images)
    with_images = RELATIVE_IMAGE.sub(rf"![\1]({repository}/raw/main/\2)", readme)
    return RELATIVE_LINK.sub(rf"[\1]({repository}/blob/main/\2)", with_images)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    readme = (HERE / "README.md").read_text()
    setup(
        packages=[*find_packages(include=["ssl_vit*"]), "ssl_vit.recipes"],
        # at the top of a checkout, inside the package when installed
        package_dir={"ssl_vit.recipes": "recipes"},
        long_description=readme_for_an_index(readme, project["urls"].get("Repository")),
        long_description_content_type="text/markdown",
    )
