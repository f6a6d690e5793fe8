# HIP by custom commands around clang++: the same way for a ROCm installation and for the headers and device libraries that
# scripts/hip_sdk.sh fetches. With QWEN3TTS_HIP_PLATFORM=nvidia the same sources go through nvcc and HIP's NVIDIA headers.

qwen3tts_option(QWEN3TTS_HIP_PLATFORM "amd" "What HIP is built for: amd or nvidia")
qwen3tts_option(QWEN3TTS_ROCM_PATH "" "Where include/hip lies; empty: ROCM_PATH, /opt/rocm, .hip-sdk of this folder, /usr")
qwen3tts_option(QWEN3TTS_HIP_COMPILER "" "clang++ for platform amd; empty: ROCm's own, or the system's")
qwen3tts_option(QWEN3TTS_HIP_DEVICE_LIBS "" "The folder of ocml.bc; empty: searched for below QWEN3TTS_ROCM_PATH")
qwen3tts_option(QWEN3TTS_HIP_ARCHITECTURES "gfx90a;gfx942;gfx1030;gfx1100;gfx1151" "AMD targets, as far as the device libraries know them")
string(REGEX REPLACE "[, ]+" ";" QWEN3TTS_HIP_ARCHITECTURES "${QWEN3TTS_HIP_ARCHITECTURES}")

# qwen3tts_find_hip(REASON): REASON is empty where a program with a kernel can be built; then QWEN3TTS_HIP_COMMAND (compiler
# and options), QWEN3TTS_HIP_LIBRARIES, QWEN3TTS_HIP_VERSION and QWEN3TTS_HIP_TARGETS are set too. Otherwise it says what is
# wrong and what would mend it.
function(qwen3tts_find_hip reason_out)
  set(wishes "${QWEN3TTS_ROCM_PATH}")
  if(wishes STREQUAL "")
    set(wishes "$ENV{ROCM_PATH}" /opt/rocm "${CMAKE_CURRENT_SOURCE_DIR}/.hip-sdk/root/usr" /usr)
  endif()
  set(rocm "")
  foreach(folder IN LISTS wishes)
    if(rocm STREQUAL "" AND NOT folder STREQUAL "" AND EXISTS "${folder}/include/hip/hip_version.h")
      set(rocm "${folder}")
    endif()
  endforeach()
  if(rocm STREQUAL "")
    string(REPLACE ";" ", " wishes "${wishes}")
    set(${reason_out} "no include/hip/hip_version.h was found in ${wishes}. Install ROCm or run scripts/hip_sdk.sh, or set QWEN3TTS_ROCM_PATH" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${rocm}/include/hip/hip_version.h" lines REGEX "define +HIP_VERSION_(MAJOR|MINOR) ")
  string(REGEX REPLACE ".*HIP_VERSION_MAJOR +([0-9]+).*HIP_VERSION_MINOR +([0-9]+).*" "\\1.\\2" version "${lines}")

  if(QWEN3TTS_HIP_PLATFORM STREQUAL "amd")
    qwen3tts_amd_toolchain("${rocm}" reason)
  elseif(QWEN3TTS_HIP_PLATFORM STREQUAL "nvidia")
    qwen3tts_nvidia_toolchain("${rocm}" reason)
  else()
    set(reason "QWEN3TTS_HIP_PLATFORM is '${QWEN3TTS_HIP_PLATFORM}', expected amd or nvidia")
  endif()
  if(reason STREQUAL "")
    qwen3tts_try_hip("${command}" "${libraries}" reason)
  endif()
  set(QWEN3TTS_HIP_COMMAND "${command}" PARENT_SCOPE)
  set(QWEN3TTS_HIP_LIBRARIES "${libraries}" PARENT_SCOPE)
  set(QWEN3TTS_HIP_VERSION "${version} (${QWEN3TTS_HIP_PLATFORM})" PARENT_SCOPE)
  set(QWEN3TTS_HIP_TARGETS "${targets}" PARENT_SCOPE)
  set(${reason_out} "${reason}" PARENT_SCOPE)
endfunction()

# Sets command, libraries, targets and the reason in the caller's scope.
function(qwen3tts_amd_toolchain rocm reason_out)
  set(compiler "${QWEN3TTS_HIP_COMPILER}")
  if(compiler STREQUAL "")
    find_program(QWEN3TTS_HIP_COMPILER_FOUND
      NAMES amdclang++ clang++ HINTS "${rocm}/bin" "${rocm}/llvm/bin" "${rocm}/lib/llvm/bin" NO_DEFAULT_PATH)
    find_program(QWEN3TTS_HIP_COMPILER_FOUND NAMES amdclang++ clang++-19 clang++-20 clang++-18 clang++-17 clang++)
    mark_as_advanced(QWEN3TTS_HIP_COMPILER_FOUND)
    set(compiler "${QWEN3TTS_HIP_COMPILER_FOUND}")
  endif()
  if(NOT compiler)
    set(${reason_out} "no clang++ was found. Install ROCm or clang 19, or set QWEN3TTS_HIP_COMPILER" PARENT_SCOPE)
    return()
  endif()

  set(device_libs "${QWEN3TTS_HIP_DEVICE_LIBS}")
  if(device_libs STREQUAL "")
    file(GLOB found "${rocm}/amdgcn/bitcode/ocml.bc" "${rocm}/lib/amdgcn/bitcode/ocml.bc"
      "${rocm}/lib/llvm*/lib/clang/*/amdgcn/bitcode/ocml.bc" "${rocm}/lib/clang/*/amdgcn/bitcode/ocml.bc"
      "${rocm}/lib/*/amdgcn/bitcode/ocml.bc")
    list(LENGTH found count)
    if(count GREATER 0)
      list(GET found -1 first)
      get_filename_component(device_libs "${first}" DIRECTORY)
    endif()
  endif()
  if(NOT EXISTS "${device_libs}/ocml.bc")
    if(QWEN3TTS_HIP_DEVICE_LIBS STREQUAL "")
      set(${reason_out} "AMD's device libraries (ocml.bc) were not found below ${rocm}. Install rocm-device-libs or run scripts/hip_sdk.sh, or set QWEN3TTS_HIP_DEVICE_LIBS" PARENT_SCOPE)
    else()
      set(${reason_out} "there is no ocml.bc in ${QWEN3TTS_HIP_DEVICE_LIBS}. Set QWEN3TTS_HIP_DEVICE_LIBS to the folder of AMD's device libraries, or leave it empty to search below ${rocm}" PARENT_SCOPE)
    endif()
    return()
  endif()

  set(targets "")
  set(unknown "")
  foreach(architecture IN LISTS QWEN3TTS_HIP_ARCHITECTURES)
    string(REGEX REPLACE "^gfx|:.*$" "" number "${architecture}")
    if(EXISTS "${device_libs}/oclc_isa_version_${number}.bc")
      list(APPEND targets "${architecture}")
    else()
      list(APPEND unknown "${architecture}")
    endif()
  endforeach()
  if(NOT targets)
    set(${reason_out} "the device libraries in ${device_libs} know none of QWEN3TTS_HIP_ARCHITECTURES=${QWEN3TTS_HIP_ARCHITECTURES}" PARENT_SCOPE)
    return()
  endif()
  if(unknown)
    message(STATUS "HIP: the device libraries do not know the architectures ${unknown}; they are left out")
  endif()

  # The runtime: with its version in the name where only the library is installed, not its development files.
  file(GLOB runtimes "${rocm}/lib/libamdhip64.so" "${rocm}/lib/*/libamdhip64.so" "${rocm}/lib/libamdhip64.so.[0-9]"
    "/usr/lib/*/libamdhip64.so.[0-9]" "/usr/lib64/libamdhip64.so.[0-9]")
  set(runtime "")
  foreach(one IN LISTS runtimes)
    if(runtime STREQUAL "" AND EXISTS "${one}")  # development files without the library leave a dead link
      set(runtime "${one}")
    endif()
  endforeach()
  if(runtime STREQUAL "")
    set(${reason_out} "HIP's runtime library, libamdhip64.so, was not found. Install ROCm or the package libamdhip64-5" PARENT_SCOPE)
    return()
  endif()

  list(TRANSFORM targets PREPEND "--offload-arch=" OUTPUT_VARIABLE offload)
  set(command "${compiler}" -x hip ${offload} "--rocm-path=${rocm}" "--rocm-device-lib-path=${device_libs}"
    -isystem "${rocm}/include" -D__HIP_PLATFORM_AMD__=1 -Wall -Wextra -Werror -fPIC -fvisibility=hidden PARENT_SCOPE)
  set(libraries "${runtime}" PARENT_SCOPE)
  set(targets "${targets}" PARENT_SCOPE)
  set(${reason_out} "" PARENT_SCOPE)
endfunction()

function(qwen3tts_nvidia_toolchain rocm reason_out)
  if(NOT EXISTS "${rocm}/include/hip/nvidia_detail/nvidia_hip_runtime.h")
    set(${reason_out} "${rocm}/include/hip has no headers for NVIDIA. Run scripts/hip_sdk.sh, which fetches some, and set QWEN3TTS_ROCM_PATH to .hip-sdk/root/usr" PARENT_SCOPE)
    return()
  endif()
  qwen3tts_find_cuda(reason)
  set(command "${QWEN3TTS_NVCC}" -x cu ${QWEN3TTS_CUDA_FLAGS} -D__HIP_PLATFORM_NVIDIA__=1
    -include "${CMAKE_CURRENT_SOURCE_DIR}/csrc/hip/nvidia/compat.h" -isystem "${rocm}/include"
    -Xcompiler "-Wall,-Wextra,-Werror,-fPIC,-fvisibility=hidden" -Werror=all-warnings PARENT_SCOPE)
  set(libraries "${QWEN3TTS_CUDART}" PARENT_SCOPE)
  set(targets "${QWEN3TTS_CUDA_TARGETS}" PARENT_SCOPE)
  set(${reason_out} "${reason}" PARENT_SCOPE)
endfunction()

# A small program, compiled with the very options of the sources and linked as the module will be.
function(qwen3tts_try_hip command libraries reason_out)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/try_hip")
  file(WRITE "${folder}/try.cpp" "#include <hip/hip_runtime.h>\n#include <cmath>\n"
    "__global__ void twice(float* x) { x[threadIdx.x] = 2.0f * sqrtf(x[threadIdx.x]); }\n"
    "extern \"C\" int run(float* x) {\n  hipLaunchKernelGGL(twice, dim3(1), dim3(32), 0, nullptr, x);\n"
    "  return static_cast<int>(hipGetLastError());\n}\n")
  list(GET command 0 compiler)
  execute_process(COMMAND ${command} -std=c++17 -O1 -c "${folder}/try.cpp" -o "${folder}/try.o"
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  if(status EQUAL 0)
    execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -shared "${folder}/try.o" ${libraries} -ldl -lpthread -lrt -o "${folder}/try.so"
      OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  endif()
  set(${reason_out} "" PARENT_SCOPE)
  if(NOT status EQUAL 0)
    qwen3tts_one_line(line "${text}" "${status}")
    set(${reason_out} "${compiler} cannot build a small program: ${line}. Repair the HIP toolchain, or set QWEN3TTS_HIP_COMPILER, QWEN3TTS_ROCM_PATH and QWEN3TTS_HIP_DEVICE_LIBS" PARENT_SCOPE)
  endif()
endfunction()

# qwen3tts_add_hip_objects(OUT SOURCES file...): object files made by the HIP compiler from sources under csrc/.
function(qwen3tts_add_hip_objects out)
  cmake_parse_arguments(PARSE_ARGV 1 argument "" "" "SOURCES")
  set(objects "")
  string(REPLACE ";" "," targets "${QWEN3TTS_HIP_TARGETS}")
  foreach(source IN LISTS argument_SOURCES)
    get_filename_component(source "${source}" ABSOLUTE)
    file(RELATIVE_PATH name "${CMAKE_CURRENT_SOURCE_DIR}/csrc" "${source}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/hip/${name}.o")
    get_filename_component(folder "${object}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${QWEN3TTS_HIP_COMMAND} -std=c++17 -O3 -DNDEBUG "-DQWEN3TTS_ARCHITECTURES=\"${targets}\""
              "-I${CMAKE_CURRENT_SOURCE_DIR}/csrc" -MD -MF "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}" "${CMAKE_CURRENT_SOURCE_DIR}/csrc/hip/nvidia/compat.h" DEPFILE "${object}.d"
      COMMENT "HIP ${name}" VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()
