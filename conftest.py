"""Environment of all tests: the settings of runs that the user has set do not affect them."""

import os

for name in [name for name in os.environ if name.upper().startswith("HOOKBUS_")]:
    del os.environ[name]
