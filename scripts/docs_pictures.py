"""Make the pictures of the documentation (docs/_static/*.png) again, e.g. after new weights of the default model.

python scripts/docs_pictures.py [--only NAME …] [--out FOLDER] [--quick]

The pictures of the examples take up to half a minute of CPU time each; screening-report is a screenshot of the report
of the screening in docs/tutorials/screening.md (benchmarks/screening_metals.py) and needs chromium and two minutes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = {
    "demo.png": ("relax_co_cu111.py", "co_cu111.png"),
    "neb_diffusion.png": ("neb_diffusion.py", "neb_diffusion.png"),
    "rdf.png": ("md_rdf.py", "rdf.png"),
    "equation_of_state.png": ("equation_of_state.py", "equation_of_state.png"),
}
REPORT = "screening-report.png"
QUICK = "--bulk Cu --miller 1 1 1 --width 0 --adsorbate H --fmax 0.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE, SCALE = (1280, 2350), 0.75  # of the window, in CSS pixels; pixels of the picture per CSS pixel
FLAGS = "--headless --no-sandbox --disable-gpu --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"


def example_picture(name: str, out: Path, work: Path, *, quick: bool) -> None:
    """Run the example that writes a picture."""
    script, picture = EXAMPLES[name]
    command = [sys.executable, REPOSITORY / "examples" / script, "--out", work]
    subprocess.run([*command, *(["--quick"] if quick else [])], check=True)
    shutil.copyfile(work / picture, out / name)


def report_picture(out: Path, work: Path, *, quick: bool) -> None:
    """Run the screening of the tutorial and take a picture of its report."""
    folder = work / "screening"
    if quick:
        command = [sys.executable, "-m", "faenet_calc", "screen", *QUICK.split(), "-o", folder]
    else:
        command = [sys.executable, REPOSITORY / "benchmarks" / "screening_metals.py", "run", folder]
    subprocess.run(command, check=True)
    screenshot(folder / "report.html", out / REPORT, work)


def screenshot(page: Path, picture: Path, work: Path) -> None:
    """Draw a page in a headless browser and save the top of it."""
    from PIL import Image

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"{picture.name} needs a browser: apt-get install chromium, or --only {' '.join(EXAMPLES)}")
    full = work / "screenshot.png"
    size = [f"--window-size={SIZE[0]},{SIZE[1]}", f"--force-device-scale-factor={SCALE}"]
    settings = [*size, "--hide-scrollbars", "--virtual-time-budget=10000", f"--user-data-dir={work / 'profile'}"]
    command = [browser, *FLAGS.split(), *settings, f"--screenshot={full}", page.resolve().as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, check=False)  # harmless messages
    if not full.is_file():
        raise SystemExit(f"{browser} made no screenshot:\n{drawn.stderr}")
    with Image.open(full) as image:
        image.convert("RGB").save(picture, optimize=True)


def main() -> None:
    """Parse the arguments and make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*EXAMPLES, REPORT]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "_static", help="folder of the pictures")
    parser.add_argument("--quick", action="store_true", help="small calculations, as a test of the commands")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            if name == REPORT:
                report_picture(arguments.out, Path(folder), quick=arguments.quick)
            else:
                example_picture(name, arguments.out, Path(folder), quick=arguments.quick)
        print(f"wrote {arguments.out / name}")


if __name__ == "__main__":
    main()
