#@title Set-up: run this cell first { display-mode: "form" }
import importlib.util, os, subprocess, sys
from importlib import metadata

SOURCE = os.environ.get("TILEKIT_SOURCE", "git+https://github.com/OWNER/tilekit")
if os.path.isdir("../tilekit/kernels"):
    sys.path.insert(0, os.path.abspath(".."))  # the checkout that this notebook lies in
elif importlib.util.find_spec("tilekit") is None:
    if "COLAB_RELEASE_TAG" not in os.environ:
        raise SystemExit(f'tilekit is not installed here. In a terminal: pip install "tilekit-lessons[notebooks] @ {SOURCE}"')
    def pip_install(*requirements):
        # What Colab brings stays as it is: pip may add packages, but not exchange these.
        kept = [n for n in ("torch", "triton", "numpy") if importlib.util.find_spec(n)]
        with open("tilekit-constraints.txt", "w") as file:
            file.writelines(f"{name}=={metadata.version(name)}\n" for name in kept)
        command = [sys.executable, "-m", "pip", "install", "--constraint", "tilekit-constraints.txt", *requirements]
        print("$", *command)
        subprocess.run(command, check=True)
    pip_install(f"tilekit-lessons @ {SOURCE}")
    importlib.invalidate_caches()
    from tilekit import environment
    facts = environment.collect_facts(trial=False)
    if (facts.compute_capability or (0, 0)) >= (8, 0) and (facts.driver_cuda or (0, 0)) >= (13, 0):
        pip_install(*environment.CUTILE_REQUIREMENTS)

import tilekit  # before triton: it settles whether kernels are compiled or interpreted
print("tilekit", tilekit.__version__, "is ready")
