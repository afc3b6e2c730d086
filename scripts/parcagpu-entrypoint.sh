#!/bin/sh
# Runs a command with libparcagpu.so in it; for containers: ENTRYPOINT ["parcagpu-entrypoint.sh"].
#
#   parcagpu-entrypoint.sh COMMAND [ARG...]
#
#   PARCAGPU_LIB=FILE    the library; else libparcagpu.so beside this script, or in ../lib or ../lib/parcagpu of it
#   PARCAGPU_DISABLE=1   the command is run and nothing else is done
#
# The library is put before what LD_PRELOAD holds. CUDA_INJECTION64_PATH is set unless it is set already, and so
# is NVTX_INJECTION64_PATH, with a library that takes NVTX. Where the library is missing or cannot be loaded by
# the programs of this system (musl, a glibc that is too old, another machine's), one line on stderr says so, and
# the command is run without it. The exit status is the command's; 127 and 126, as a shell's, when there is none.
#
# A shell may drop environment variables whose names it could not have itself (a.b=c); where a program needs such,
# set LD_PRELOAD in the image and leave this script out.

# Nothing but shell builtins unless it says so: an image may have no other tools. Every variable begins with
# _parcagpu_, because one that the environment has already is the command's.

_parcagpu_say() { echo "parcagpu: $1; the command runs without it" >&2; }

# Prints where this script is, links resolved where the system has readlink.
_parcagpu_here() (
	CDPATH=''
	self=$1
	case $self in
	*/*) ;;
	*) [ -f "$self" ] || self=$(command -v -- "$self") ;;
	esac
	real=$(readlink -f -- "$self" 2>&-) && self=$real
	case $self in
	*/*) cd -P -- "${self%/*}/" 2>&- || exit ;;
	esac
	pwd -P
)

# Prints the library's path, which is to be absolute: the command may change its folder.
_parcagpu_find() (
	CDPATH=''
	if [ -n "$PARCAGPU_LIB" ]; then
		set -- "$PARCAGPU_LIB"
	else
		here=$(_parcagpu_here "$1")
		set -- "$here/libparcagpu.so" "$here/../lib/libparcagpu.so" "$here/../lib/parcagpu/libparcagpu.so"
	fi
	for file; do
		[ -f "$file" ] || continue
		case $file in
		*/*) cd -P -- "${file%/*}/" && folder=$(pwd -P) ;;
		*) folder=$(pwd -P) ;;
		esac || continue
		echo "${folder%/}/${file##*/}"
		return 0
	done
	return 1
)

# Prints why the programs of this system could not load the library, and nothing if they can. The trial is a
# shell, which is linked like the others; where it is linked with nothing, the loaders that there are tell.
_parcagpu_obstacle() (
	case $1 in
	*[\ :\$]*)
		echo "$1 has a character that LD_PRELOAD cannot hold (space, colon or dollar)"
		return
		;;
	esac
	musl='' glibc=''
	for loader in /lib/ld-musl-*; do [ ! -e "$loader" ] || musl=1; done
	for loader in /lib64/ld-linux* /lib/ld-linux*; do
		[ ! -e "$loader" ] || glibc=1
	done
	if [ -z "$glibc" ]; then
		echo "$1 needs glibc, which this system has not${musl:+: it has musl}"
		return
	fi
	[ -x /bin/sh ] || return
	if words=$({
		unset LD_DEBUG LD_TRACE_LOADED_OBJECTS
		PARCAGPU_DISABLE=1 LD_PRELOAD=$1 /bin/sh -c :
	} 2>&1) && [ -z "$words" ]; then
		return
	fi
	# One line, whatever the loader said.
	words=$(echo "$words" | {
		read -r line
		echo "$line"
	})
	echo "$1 cannot be loaded here${words:+ ($words)}"
)

_parcagpu_prepare() {
	if ! _parcagpu_lib=$(_parcagpu_find "$0"); then
		_parcagpu_say "${PARCAGPU_LIB:-libparcagpu.so} is not there"
		return
	fi
	_parcagpu_why=$(_parcagpu_obstacle "$_parcagpu_lib")
	if [ -n "$_parcagpu_why" ]; then
		_parcagpu_say "$_parcagpu_why"
		return
	fi
	case ":$LD_PRELOAD:" in
	*[\ :]"$_parcagpu_lib"[\ :]*) ;;
	*) export LD_PRELOAD="$_parcagpu_lib${LD_PRELOAD:+:$LD_PRELOAD}" ;;
	esac
	[ -n "${CUDA_INJECTION64_PATH+set}" ] || export CUDA_INJECTION64_PATH="$_parcagpu_lib"
	# A library that has not this function would end an NVTX client's search for a tool.
	if [ -z "${NVTX_INJECTION64_PATH+set}" ] && grep -q InitializeInjectionNvtx2 "$_parcagpu_lib" 2>&-; then
		export NVTX_INJECTION64_PATH="$_parcagpu_lib"
	fi
}

case ${1-} in
'')
	if [ $# = 0 ]; then
		echo "parcagpu: no command to run; see ${0##*/}" >&2
		exit 2
	fi
	;;
-*)
	# Some shells would take it for an option of exec.
	echo "parcagpu: $1: not found" >&2
	exit 127
	;;
esac
case ${PARCAGPU_DISABLE-} in
'' | 0 | [Oo][Ff][Ff] | [Ff][Aa][Ll][Ss][Ee] | [Nn][Oo]) _parcagpu_prepare ;;
esac
exec "$@"
