dnl SPDX-License-Identifier: MIT
dnl MOEK_HIP_COMPILER: a clang that makes AMD code objects, without any ROCm package.
dnl MOEK_HIP_ARCH(ARCH): sets moek_hip_ARCH to yes if it builds for that architecture.
AC_DEFUN([MOEK_HIP_COMPILER], [
	AC_ARG_VAR([HIPCLANG], [clang with the AMDGPU back end; "no": build no GPU code])
	AS_IF([test "x$HIPCLANG" != xno],
		[AC_PATH_PROGS([HIPCLANG], [clang-22 clang-21 clang-20 amdclang clang-19], [no])])
	dnl no cuid: the same source gives the same bytes
	HIPFLAGS="-x hip --cuda-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 -std=c++17 -Wall -Wextra -mcode-object-version=5 -fuse-cuid=none"
	AC_SUBST([HIPFLAGS])
])
AC_DEFUN([MOEK_HIP_ARCH], [
	AC_MSG_CHECKING([whether $HIPCLANG builds for $1])
	AS_VAR_SET([moek_hip_$1], [no])
	AS_IF([test "x$HIPCLANG" != xno],
		[echo 'extern "C" __attribute__((global)) void k(float *p) { *p = 1; }' >conftest.hip
		 AS_IF([$HIPCLANG $HIPFLAGS --offload-arch=$1 conftest.hip -o conftest.hsaco >&AS_MESSAGE_LOG_FD 2>&1],
			[AS_VAR_SET([moek_hip_$1], [yes])])
		 rm -f conftest.hip conftest.hsaco])
	AC_MSG_RESULT([$moek_hip_$1])
])
