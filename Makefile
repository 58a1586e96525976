# The front door. CMake does the work: see CMakePresets.json for the builds, `make help` for the targets.
JOBS         ?= $(shell nproc)
PREFIX       ?= /usr/local
TESTS        ?= .# only the tests whose name matches this expression: make asan TESTS=test_core
SKIP         ?= ^$$# and none that matches this one
# One version where it can be had, since the next formats a little differently.
CLANG_FORMAT ?= $(shell command -v clang-format-14 || echo clang-format)
C_FILES       = $(shell git ls-files '*.c' '*.h')
# Some systems randomise addresses so widely that the sanitizers of gcc 12 and 13 cannot place their own memory.
UNRANDOMISED  = $(shell setarch -R true 2>/dev/null && echo setarch -R)

# $(call build,PRESET[,configure options])
build = cmake --preset $(1) $(2) && cmake --build --preset $(1) -j $(JOBS)
# $(call ctest,PRESET[,run by]): the tests, and why some were skipped
ctest = $(2) ctest --preset $(1) -j $(JOBS) -R '$(TESTS)' -E '$(SKIP)'; status=$$?; \
	sed -n 's/^\[  SKIPPED \] \([a-z0-9]*: .*\)/skipped: \1/p; t; /^skipped: /p' \
	    build/$(1)/Testing/Temporary/LastTest.log | sort | uniq -c; exit $$status

.PHONY: all install-build test train bench debug plain asan ubsan tsan fuzz format check-format tidy install \
        clean help

all: ## build (release)
	@$(call build,release)

install-build:
	@tools/install-deps build

test: install-build ## install what is missing, build, run all tests
	@$(call build,release)
	@$(call ctest,release)

train: install-build ## install what is missing, build, train the default model on the best device
	@$(call build,release)
	@build/release/bin/kiln train

bench: all ## build, run the benchmarks beside PyTorch (KILN_PEERS_PYTHON: a Python that has it), print the ratios
	@bash bench/run.sh build/release/bin

debug plain asan ubsan tsan: ## build that preset and run its tests
	@$(call build,$@)
	@$(call ctest,$@,$(UNRANDOMISED))

FUZZ_SECONDS ?= 60
fuzz: ## build the fuzz targets with clang and run each for FUZZ_SECONDS
	@$(call build,fuzz)
	@fuzz/run $(FUZZ_SECONDS)

format: ## format the tracked C files
	@$(if $(C_FILES),$(CLANG_FORMAT) -i $(C_FILES))

check-format: ## fail if a tracked C file is not formatted
	@$(if $(C_FILES),$(CLANG_FORMAT) --dry-run --Werror $(C_FILES))

tidy: ## static analysis of src/; the cache makes it quick the second time
	@mkdir -p build/cppcheck
	@cppcheck -j $(JOBS) --quiet --std=c11 --library=posix --enable=warning,performance,portability --inline-suppr \
	    --suppress=missingIncludeSystem --suppressions-list=tools/cppcheck.suppress --error-exitcode=1 --cppcheck-build-dir=build/cppcheck -I include -I src src

install: ## install to PREFIX (/usr/local), below DESTDIR if given
	@$(call build,dist,-D CMAKE_INSTALL_PREFIX=$(PREFIX))
	@cmake --install build/dist

clean: ## remove all builds
	@rm -rf build

help: ## this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "  make %-28s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
