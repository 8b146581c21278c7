# Each target does all set-up it needs: an own .venv, the dependencies, the native core. A second run
# reinstalls nothing. Needs Python, a C++20 compiler and make; no step needs root. Tests across several
# hosts do, and skip without it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MPICH_VENV := .venv-mpich
DEEPSPEED_VENV := .venv-deepspeed
NUMPY_VENV := .venv-numpy
TENSORFLOW_VENV := .venv-tensorflow
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Brings the data of examples/fourier_operator.py, which needs none of what its code depends on.
DARCY_DATA := neuraloperator==0.3.0
NATIVE := $(shell find native -name '*.cc' -o -name '*.h') CMakeLists.txt
PYTEST := $(BIN)/python -m pytest
# Tests start hundreds of interpreters: each would compile every file of kadril and of the tests anew.
unexport PYTHONDONTWRITEBYTECODE
QUICK := -m "not faults and not long" $(if $(SHARED),--times $(SHARED),--slowest 10)

.DELETE_ON_ERROR:
.PHONY: help setup host-tools demo test check native-test sanitize python-test tiers-test tensorflow-test first-lane last-lane faults bench format clean fuzz

help:
	@echo "make demo      two ranks train on handwritten digits; times beside DDP, gloo and MPI"
	@echo "make test      style, types, native tests, all quick Python tests"
	@echo "make tiers-test  tests of the layers, over tiers instead of shared memory"
	@echo "make sanitize  native tests under ThreadSanitizer, and AddressSanitizer with UBSan"
	@echo "make faults    the long fault matrix"
	@echo "make fuzz      every parser of sockets and files, for an hour (FUZZ_SECONDS)"
	@echo "make bench     every figure in benchmarks/results"
	@echo "make format    ruff format, clang-format"

setup: $(VENV)/.installed $(VENV)/.host-tools

# Tests across hosts (kadril.testing.hosts) want sshd and iptables, and skip without them. A package
# that brings a server would start it where systemd runs: there, only `make host-tools` installs it.
HOST_TOOLS := openssh-server openssh-client iptables iproute2
$(VENV)/.host-tools: | $(VENV)/bin/python
	@if [ "$$(id -u)" = 0 ] && [ ! -d /run/systemd/system ] && command -v apt-get > /dev/null \
	  && ! (PATH="$$PATH:/usr/sbin:/sbin"; for tool in sshd ssh iptables ip tc; do \
	    command -v $$tool > /dev/null || exit 1; done); then \
	  $(MAKE) --no-print-directory host-tools > $(VENV)/host-tools.log 2>&1 \
	  || echo "no $(HOST_TOOLS) here (see $(VENV)/host-tools.log): tests that need them skip"; fi
	@touch $@

host-tools:
	timeout 120 apt-get -qq update
	DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install -y --no-install-recommends $(HOST_TOOLS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: the pin in constraints.txt decides which build everything else sees.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -r constraints.txt
	touch $@

$(VENV)/.installed: pyproject.toml $(NATIVE) $(VENV)/.torch
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	$(PIP) install -q --no-deps $(DARCY_DATA)
	touch $@

# Environments of their own that see the packages of the first: the two MPI wheels fight over
# bin/mpirun and lib/libmpi.so; DeepSpeed is a peer in benchmarks, which nothing else has to carry.
define beside-the-first
$(PYTHON) -m venv $(1)
$(1)/bin/python -c 'import sysconfig, pathlib; \
  pathlib.Path(sysconfig.get_path("purelib"), "main.pth").write_text( \
  "import site; site.addsitedir(%r)\n" % "$(shell $(PYTHON) -c 'import pathlib; print(pathlib.Path("$(VENV)").resolve())')/lib/python%s/site-packages" \
  % sysconfig.get_python_version())'
endef
TENSORFLOW := tensorflow-cpu==2.21.0 'keras>=3' tf_keras==2.21.0
INSTALL := bin/python -m pip --disable-pip-version-check install -q -c constraints.txt

$(MPICH_VENV)/.installed: $(VENV)/.installed
	$(call beside-the-first,$(MPICH_VENV))
	$(MPICH_VENV)/$(INSTALL) mpich
	touch $@

# What a user has who installs kadril without torch: links to packages of the first one.
# ml_dtypes is bfloat16 of numpy.
$(NUMPY_VENV)/.installed: $(VENV)/.installed
	$(BIN)/python -m venv --clear --without-pip $(NUMPY_VENV)
	cd $(NUMPY_VENV)/lib/python*/site-packages && for name in numpy ml_dtypes kadril; do \
	  ln -s $(abspath $(VENV))/lib/python*/site-packages/*$$name* .; done
	touch $@

# TensorFlow brings protobuf, abseil and a Keras, which nobody else has to carry or to import.
$(TENSORFLOW_VENV)/.installed: $(VENV)/.installed
	$(call beside-the-first,$(TENSORFLOW_VENV))
	$(TENSORFLOW_VENV)/$(INSTALL) $(TENSORFLOW)
	touch $@

# The dash: where it does not install, the results say so, and the rest is measured.
$(DEEPSPEED_VENV)/.installed: $(VENV)/.installed
	$(call beside-the-first,$(DEEPSPEED_VENV))
	-$(DEEPSPEED_VENV)/$(INSTALL) deepspeed
	touch $@

demo: setup
	@echo "== Two ranks, one per core, train one model on handwritten digits, with the API of Horovod"
	@echo "   (examples/mnist.py); then the same training step is timed beside DDP on gloo."
	$(BIN)/kadril run -np 2 --bind examples/mnist.py
	@echo
	@echo "== All-reduce on the same two ranks, beside gloo, MPI and a plain copy of memory."
	$(BIN)/kadril bench --quick

# Parts run next to each other, LANES at once, since ranks wait for each other much of the time: three
# keep two cores busy, where two left a quarter of the time idle. A part that fails does not keep the
# others from telling what they find. LANES=1 where the machine has other work. Two sessions share the
# Python tests: one takes files from the first on, the other from the last.
LANES ?= 3
PYTHON_LANES := first-lane $(if $(filter-out 1,$(LANES)),last-lane)
define run-parts
@shared=$$(mktemp -d) && $(MAKE) --no-print-directory --keep-going --jobs=$(LANES) \
  $(if $(filter-out 1,$(LANES)),--output-sync=target) $(1) $(PYTHON_LANES) SHARED=$$shared; code=$$?; \
  $(BIN)/python tests/suite_times.py $$shared; rm -rf $$shared; exit $$code
endef

test: setup $(MPICH_VENV)/.installed $(NUMPY_VENV)/.installed $(TENSORFLOW_VENV)/.installed
	$(call run-parts,tensorflow-test check native-test)

python-test: setup $(MPICH_VENV)/.installed $(NUMPY_VENV)/.installed
	$(call run-parts,)

first-lane last-lane: %-lane:
	$(PYTEST) $(QUICK) --require-mpi tests --lane $* $(SHARED)

# In an environment of its own; a session that has no TensorFlow leaves the folder out.
tensorflow-test: setup $(TENSORFLOW_VENV)/.installed
	$(TENSORFLOW_VENV)/bin/python -m pytest $(QUICK) tests/tensorflow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPYPATH=tests/types $(BIN)/mypy -p kadril -m user_program
	$(BIN)/clang-format --dry-run --Werror $(shell find native -name '*.cc' -o -name '*.h')

native-test: setup
	@$(call run-native,build/native,)

sanitize: setup
	@$(call run-native,build/tsan,-DKADRIL_SANITIZE=thread)
	@$(call run-native,build/asan,-DKADRIL_SANITIZE=address$(comma)undefined)

comma := ,
define run-native
mkdir -p build && $(BIN)/cmake -S . -B $(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DKADRIL_NATIVE_TESTS=ON $(2) > $(1).log 2>&1 \
  || { cat $(1).log; exit 1; }; \
MAKEFLAGS= $(BIN)/cmake --build $(1) && $(BIN)/ctest --test-dir $(1) --output-on-failure
endef

# Layers above the transports, as if the ranks were on two hosts. What needs shared memory says why it is
# skipped; tests that ask for another transport, or for no world, are left out. Some run in `make test` too.
LAYERS := engine torch torch_training ops partition nn sharded ddl experiment
tiers-test: setup
	$(PYTEST) --over tiered -m "not faults and not long" \
	  $(LAYERS:%=tests/ranks/%) tests/ranks/test_collectives.py tests/ranks/test_compat_distdl_*.py

# The first line has the long ones of its folder already.
FAULT_TIMES := build/fault-times.jsonl
FAULT_LIMITS := --timeout 3600 -o faulthandler_timeout=600 --fault-times $(FAULT_TIMES)
LONG := -m "long and not faults" --timeout 600 -o faulthandler_timeout=600 --fault-times $(FAULT_TIMES)
faults: setup $(MPICH_VENV)/.installed $(NUMPY_VENV)/.installed $(TENSORFLOW_VENV)/.installed
	mkdir -p build && rm -f $(FAULT_TIMES)
	$(PYTEST) tests/faults $(FAULT_LIMITS)
	$(PYTEST) tests/launch -m faults $(FAULT_LIMITS)
	$(PYTEST) tests --ignore tests/faults $(LONG) --require-mpi
	$(TENSORFLOW_VENV)/bin/python -m pytest tests/tensorflow $(LONG)
	$(BIN)/python benchmarks/fault_comparison/matrix_times.py $(FAULT_TIMES)

FUZZ_SECONDS ?= 3600
fuzz: setup
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) tests/fuzz -rP --timeout $$(( $(FUZZ_SECONDS) + 600 )) -o faulthandler_timeout=0

bench: setup $(MPICH_VENV)/.installed $(DEEPSPEED_VENV)/.installed $(TENSORFLOW_VENV)/.installed
	$(BIN)/python benchmarks/run_all.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(shell find native -name '*.cc' -o -name '*.h')

clean:
	rm -rf $(VENV) $(MPICH_VENV) $(DEEPSPEED_VENV) $(NUMPY_VENV) $(TENSORFLOW_VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
