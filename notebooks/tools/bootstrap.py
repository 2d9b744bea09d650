#@title Set-up: run this cell first { display-mode: "form" }
import importlib, os, subprocess, sys
from importlib import metadata

SOURCE = os.environ.get("TILEKIT_SOURCE", "git+https://github.com/OWNER/tilekit")

def version_of(package):
    return next((found.version for found in metadata.distributions(name=package)), None)

def pip_install(*requirements):
    # What Colab brings stays as it is: pip may add packages, but not exchange these.
    kept = {name: version_of(name) for name in ("torch", "triton", "numpy")}
    with open("tilekit-constraints.txt", "w") as file:
        file.writelines(f"{name}=={version}\n" for name, version in kept.items() if version)
    command = [sys.executable, "-m", "pip", "install", "--constraint", "tilekit-constraints.txt", *requirements]
    print("$", *command)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout:
            print(line, end="")
    if pip.returncode:
        raise RuntimeError("pip could not install this; its last lines above say why")
    importlib.invalidate_caches()

if os.path.isdir("../tilekit/kernels"):  # this notebook lies in a checkout
    sys.path[:0] = [path for path in [os.path.abspath("..")] if path not in sys.path]
elif "COLAB_RELEASE_TAG" in os.environ:
    if not version_of("tilekit-lessons"):
        pip_install(f"tilekit-lessons @ {SOURCE}")
    from tilekit import environment
    facts = environment.collect_facts(trial=False)
    can_run_cutile = (facts.compute_capability or (0, 0)) >= (8, 0) and (facts.driver_cuda or (0, 0)) >= (13, 0)
    if can_run_cutile and not all(version_of(part) for part in ("cuda-tile", "nvidia-cuda-tileiras")):
        pip_install(*environment.CUTILE_REQUIREMENTS)
elif not version_of("tilekit-lessons"):
    raise ModuleNotFoundError(f'tilekit is not here. In a terminal: pip install "tilekit-lessons[notebooks] @ {SOURCE}"')

import tilekit  # before triton: it settles whether kernels are compiled or interpreted
print("tilekit", tilekit.__version__, "is ready, from", os.path.dirname(tilekit.__file__))
