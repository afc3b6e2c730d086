# shellcheck shell=bash
# What the scripts share; sourced, not run. Sets `root` (the repository) and `target` (cargo's folder)
# and exports CARGO_TARGET_DIR, so that every tool means the same one.
#
# Nothing here is fetched but packages of the distribution, through apt, and only when run as root.

CDPATH='' root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
export CARGO_TARGET_DIR=$target

script=${0##*/}

say() { echo "$script: $*" >&2; }

# Ends the script; status 2 is "something is missing that you can provide".
die() {
	local status=1
	if [ "$1" = -2 ]; then
		status=2
		shift
	fi
	say "$@"
	exit "$status"
}

# From here on an exit status of 2, of whatever is run, is a failure: commands have it of their own, and it must not be
# taken for something that is missing.
nothing_is_missing() {
	trap 'if [ $? = 2 ]; then exit 1; fi' EXIT
}

# ---- packages ----

# What a script can need, the package that has it on Debian and Ubuntu, and how it is told to be there.
packages_of() {
	case $1 in
	build) echo gcc libc6-dev make pkg-config clang libelf-dev zlib1g-dev ca-certificates ;;
	tests) echo gcc libc6-dev systemtap-sdt-dev python3 util-linux git ;;
	pip) echo python3 python3-pip ;;
	*) echo "$1" ;;
	esac
}

is_there() {
	case $1 in
	libc6-dev) has_header stdio.h ;;
	libelf-dev) has_header gelf.h ;;
	zlib1g-dev) has_header zlib.h ;;
	systemtap-sdt-dev) has_header sys/sdt.h ;;
	# For cargo; elsewhere than on Debian and Ubuntu the certificates have other places.
	ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] || ! command -v apt-get >/dev/null ;;
	python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
	busybox-static) command -v busybox >/dev/null ;;
	chromium-driver) command -v chromedriver >/dev/null ;;
	golang-go) command -v go >/dev/null ;;
	util-linux) command -v flock >/dev/null && command -v setpriv >/dev/null ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

has_header() {
	command -v gcc >/dev/null && echo "#include <$1>" | gcc -E -x c -o /dev/null - 2>/dev/null
}

# need [--optional] THING...: installs what is missing, or says what to install and exits 2. With
# --optional it returns 1 instead.
need() {
	local optional='' thing package missing=()
	if [ "$1" = --optional ]; then
		optional=1
		shift
	fi
	for thing; do
		for package in $(packages_of "$thing"); do
			is_there "$package" || missing+=("$package")
		done
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	if install_packages "${missing[@]}"; then return 0; fi
	[ -z "$optional" ] || return 1
	die -2 "missing: ${missing[*]} (names of Debian and Ubuntu); as root: apt-get install ${missing[*]}"
}

install_packages() {
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
	say "installing $*"
	local log package
	log=$(mktemp)
	if apt_get install "$@" >"$log" 2>&1 || { apt_get update >"$log" 2>&1 && apt_get install "$@" >"$log" 2>&1; }; then
		rm -f "$log"
	else
		say "apt-get could not install $*:"
		tail -n 5 "$log" >&2
		rm -f "$log"
		return 1
	fi
	for package; do
		is_there "$package" || { say "$package was installed, but what it should bring is not there"; return 1; }
	done
}

apt_get() {
	DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" </dev/null
}

# ---- cargo ----

# The Rust version that the workspace states.
rust_version() { sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml"; }

# at_least A B: version A is B or newer.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# The version of a cargo, nothing if it does not run.
cargo_version() { (cd "$root" && timeout 60 "$1" --version 2>/dev/null </dev/null) | sed -n 's/^cargo \([0-9.]*\).*/\1/p'; }

# Puts a cargo that is new enough first in PATH, or says what to install and exits 2.
need_cargo() {
	local wanted found='' version cargo
	wanted=$(rust_version)
	for cargo in "$(command -v cargo || true)" "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo"; do
		[ -x "$cargo" ] || continue
		version=$(cargo_version "$cargo")
		[ -n "$version" ] || continue
		if at_least "$version" "$wanted"; then
			PATH=$(dirname -- "$cargo"):$PATH
			return 0
		fi
		found="$found$cargo is $version; "
	done
	if cargo_of_distribution "$wanted"; then return 0; fi
	die -2 "Rust $wanted or newer is needed (${found:-no cargo found; }${offered:-the distribution offers none}).
  Install Rust $wanted with rustup (rustup toolchain install $wanted && rustup default $wanted) and run this again."
}

# Debian: cargo; Ubuntu also cargo-1.NN beside it. Sets `offered` to what there is when it is too old.
offered=''
cargo_of_distribution() {
	local wanted=$1 package candidate best='' best_version=0
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
	[ -n "$(apt-cache policy cargo 2>/dev/null)" ] || apt_get update >/dev/null 2>&1 || return 1
	for package in cargo $(apt-cache pkgnames cargo-1. 2>/dev/null | grep -E '^cargo-1\.[0-9]+$'); do
		candidate=$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
		[ -n "$candidate" ] || continue
		if at_least "$candidate" "$best_version"; then
			best=$package
			best_version=$candidate
		fi
	done
	[ -n "$best" ] || return 1
	if ! at_least "$best_version" "$wanted"; then
		offered="the distribution's newest is $best $best_version"
		return 1
	fi
	say "installing $best $best_version"
	apt_get install "$best" "rustc${best#cargo}" >/dev/null 2>&1 || return 1
	if [ "$best" != cargo ]; then PATH=/usr/lib/rust-${best#cargo-}/bin:$PATH; fi
	at_least "$(cargo_version cargo)" "$wanted"
}

# ---- building ----

# The release library, the command, and beside the library the name it has in the C++ project.
# With the hook engine Gum where its devkit is named (FRIDA_GUM_DEVKIT); both packages have to be named for that.
build_release() { # [OPTION OF cargo...]
	local engine=()
	if [ -n "${FRIDA_GUM_DEVKIT:-}" ]; then
		engine=(--features parcagpu/gum)
		export C_INCLUDE_PATH=$FRIDA_GUM_DEVKIT${C_INCLUDE_PATH:+:$C_INCLUDE_PATH}
		export LIBRARY_PATH=$FRIDA_GUM_DEVKIT${LIBRARY_PATH:+:$LIBRARY_PATH}
	fi
	(cd "$root" && cargo build --locked --release -p parcagpu -p parcagpu-cli "${engine[@]}" "$@") || return 1
	ln -sfn libparcagpu.so "$target/release/libparcagpucupti.so"
}

# The small CUDA program of `scripts/demo`.
build_demo() {
	mkdir -p "$target/demo"
	gcc -std=gnu11 -O2 -Wall -Wextra -o "$target/demo/.demo.$$" "$root"/tests/demo/*.c -ldl -lpthread
	mv -f "$target/demo/.demo.$$" "$target/demo/demo"
}

# ---- CUDA ----

# Sets `nvcc`, and `nvcc_flags` that it needs: that of NVCC, of PATH, of /usr/local/cuda, else the one that PyPI
# carries, under target/ and nowhere else.
# shellcheck disable=SC2034 # for who sources this
nvcc='' nvcc_flags=()
find_nvcc() {
	local candidate
	command -v g++ >/dev/null || need g++
	for candidate in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
		if [ -x "$candidate" ]; then
			nvcc=$candidate
			return
		fi
	done
	need pip
	nvcc=$("$root/scripts/fetch-cuda-compilers" nvcc) || die -2 "nvcc cannot be had from PyPI; install a CUDA toolkit, or set NVCC"
	local toolkit=${nvcc%/bin/nvcc}
	# shellcheck disable=SC2034 # as above
	nvcc_flags=(-I "$toolkit/include" -L "$toolkit/lib")
}

# ---- rights ----

# has_right N: whether this process has the capability of that number in linux/capability.h.
has_right() {
	local effective
	effective=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
	[ $((0x$effective >> $1 & 1)) = 1 ]
}

# Prints what stands in the way of BPF here, and nothing when nothing does.
bpf_problem() {
	local release rights=''
	release=$(uname -r)
	if ! at_least "${release%%[!0-9.]*}" 5.15; then
		echo "kernel $release is too old: 5.15 or newer is needed"
		return
	fi
	# As the command asks: CAP_SYS_ADMIN stands for all of them.
	if ! has_right 21; then
		has_right 39 || rights="$rights CAP_BPF"
		has_right 38 || rights="$rights CAP_PERFMON"
		has_right 19 || rights="$rights CAP_SYS_PTRACE"
		if [ -n "$rights" ]; then
			echo "missing rights:$rights"
			return
		fi
	fi
	if [ ! -r /sys/kernel/btf/vmlinux ]; then
		echo "/sys/kernel/btf/vmlinux is not there: the kernel has no BTF, or /sys is not mounted"
	elif [ ! -r /sys/bus/event_source/devices/uprobe/type ]; then
		echo "/sys/bus/event_source/devices/uprobe/type is not there: the kernel has no uprobes, or /sys is not mounted"
	else
		bpf_refused
	fi
}

# Capabilities do not say everything: a seccomp filter or a user namespace may refuse all the same. So
# loads a program that returns 0 (with perl, which every Debian and Ubuntu has; else it is left to the build).
bpf_refused() {
	command -v perl >/dev/null || return 0
	# shellcheck disable=SC2016 # perl's variables
	perl -e '
		my %number = (x86_64 => 321, aarch64 => 280);
		chomp(my $machine = `uname -m`);
		my $bpf = $number{$machine} or exit;
		my $code = pack("CCsl CCsl", 0xb7, 0, 0, 0, 0x95, 0, 0, 0); # r0 = 0; exit
		my $attr = pack("L L P P", 2, 2, $code, "GPL") . "\0" x 48; # a kprobe program
		my $fd = syscall($bpf, 5, $attr, length $attr);
		print "the kernel refuses to load a BPF program: $!\n" if $fd < 0;
	' 2>/dev/null || true
}

# What to do about bpf_problem, as text.
bpf_remedy() {
	local start="docker run --privileged (or docker run --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE)"
	if [ -e /.dockerenv ] || [ -e /run/.containerenv ] || [ "${container:-}" ]; then
		echo "start the container with $start"
	else
		echo "run it as root; in a container: $start"
	fi
}
