# CUDA by custom commands around nvcc, after a trial: enable_language(CUDA) would end the whole build where the toolkit is
# there but broken.

qwen3tts_option(QWEN3TTS_CUDA_ARCHITECTURES "80;86;89;90;100;120" "Compute capabilities, as far as nvcc knows them")
string(REGEX REPLACE "[, ]+" ";" QWEN3TTS_CUDA_ARCHITECTURES "${QWEN3TTS_CUDA_ARCHITECTURES}")

# qwen3tts_find_cuda(REASON): REASON is empty where a program with a kernel can be built; then QWEN3TTS_NVCC,
# QWEN3TTS_CUDART, QWEN3TTS_CUDA_FLAGS, QWEN3TTS_CUDA_VERSION and QWEN3TTS_CUDA_TARGETS are set too. Otherwise it says
# what is wrong and what would mend it.
function(qwen3tts_find_cuda reason_out)
  if(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(nvcc "$ENV{CUDACXX}")
  else()
    find_program(QWEN3TTS_NVCC_FOUND nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" PATHS /usr/local/cuda/bin)
    set(nvcc "${QWEN3TTS_NVCC_FOUND}")
    mark_as_advanced(QWEN3TTS_NVCC_FOUND)
  endif()
  if(NOT nvcc)
    set(${reason_out} "no nvcc was found. Install the CUDA toolkit, or set CUDACXX to its nvcc" PARENT_SCOPE)
    return()
  endif()

  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT text MATCHES "release ([0-9]+[.][0-9]+)")
    qwen3tts_one_line(line "${text}" "${status}")
    set(${reason_out} "${nvcc} does not answer to --version: ${line}. Repair the CUDA toolkit, or set CUDACXX" PARENT_SCOPE)
    return()
  endif()
  set(version "${CMAKE_MATCH_1}")

  # Which architectures, and the newest also as PTX for the cards to come.
  execute_process(COMMAND "${nvcc}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(flags "")
  set(targets "")
  set(unknown "")
  foreach(architecture IN LISTS QWEN3TTS_CUDA_ARCHITECTURES)
    if(known MATCHES "sm_${architecture}([\r\n]|$)")
      list(APPEND flags "--generate-code=arch=compute_${architecture},code=sm_${architecture}")
      list(APPEND targets "sm_${architecture}")
      set(newest "${architecture}")
    else()
      list(APPEND unknown "${architecture}")
    endif()
  endforeach()
  if(NOT targets)
    string(REPLACE "\n" " " known "${known}")
    set(${reason_out} "nvcc ${version} knows none of QWEN3TTS_CUDA_ARCHITECTURES=${QWEN3TTS_CUDA_ARCHITECTURES}; it knows ${known}" PARENT_SCOPE)
    return()
  endif()
  if(unknown)
    message(STATUS "CUDA: nvcc ${version} does not know the architectures ${unknown}; they are left out")
  endif()
  list(APPEND flags "--generate-code=arch=compute_${newest},code=compute_${newest}")
  list(APPEND targets "compute_${newest}")
  if(NOT "$ENV{CUDAHOSTCXX}" STREQUAL "")
    list(APPEND flags "-ccbin=$ENV{CUDAHOSTCXX}")
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/try_cuda")
  file(WRITE "${folder}/try.cu" "#include <cuda_runtime.h>\n#include <cmath>\n"
    "__global__ void twice(float* x) { x[threadIdx.x] = 2.0f * sqrtf(x[threadIdx.x]); }\n"
    "extern \"C\" int run(float* x) { twice<<<1, 32>>>(x); return static_cast<int>(cudaGetLastError()); }\n")
  execute_process(
    COMMAND "${nvcc}" -std=c++17 ${flags} -Xcompiler -fPIC -shared -cudart static -v -o "${folder}/try.so" "${folder}/try.cu"
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  # Where nvcc's own linker looks for its libraries.
  string(REGEX MATCHALL "LIBRARIES=[^\r\n]*" line "${text}")
  string(REGEX MATCHALL "-L\"?[^\" ]+" folders "${line}")
  list(TRANSFORM folders REPLACE "^-L\"?" "")
  string(REGEX REPLACE "#[$][^\n]*\n" "" text "${text}")
  if(NOT status EQUAL 0)
    qwen3tts_one_line(line "${text}" "${status}")
    set(${reason_out} "${nvcc} ${version} cannot build a small program: ${line}. Repair the CUDA toolkit and the C++ compiler, or set CUDACXX and CUDAHOSTCXX" PARENT_SCOPE)
    return()
  endif()
  set(cudart "")
  foreach(one IN LISTS folders)
    if(EXISTS "${one}/libcudart_static.a" AND NOT cudart)
      get_filename_component(cudart "${one}/libcudart_static.a" REALPATH)
    endif()
  endforeach()
  if(NOT cudart)
    set(${reason_out} "libcudart_static.a of CUDA ${version} was not found in '${folders}'. Install the CUDA runtime's development files" PARENT_SCOPE)
    return()
  endif()

  set(QWEN3TTS_NVCC "${nvcc}" PARENT_SCOPE)
  set(QWEN3TTS_CUDART "${cudart}" PARENT_SCOPE)
  set(QWEN3TTS_CUDA_FLAGS "${flags}" PARENT_SCOPE)
  set(QWEN3TTS_CUDA_VERSION "${version}" PARENT_SCOPE)
  set(QWEN3TTS_CUDA_TARGETS "${targets}" PARENT_SCOPE)
  set(${reason_out} "" PARENT_SCOPE)
endfunction()

# qwen3tts_add_cuda_objects(OUT SOURCES file...): object files made by nvcc from sources under csrc/.
function(qwen3tts_add_cuda_objects out)
  cmake_parse_arguments(PARSE_ARGV 1 argument "" "" "SOURCES")
  set(objects "")
  set(warnings "-Wall,-Wextra,-Werror,-fvisibility=hidden,-fPIC")
  string(REPLACE ";" "," targets "${QWEN3TTS_CUDA_TARGETS}")
  foreach(source IN LISTS argument_SOURCES)
    get_filename_component(source "${source}" ABSOLUTE)
    file(RELATIVE_PATH name "${CMAKE_CURRENT_SOURCE_DIR}/csrc" "${source}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o")
    get_filename_component(folder "${object}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND "${QWEN3TTS_NVCC}" -x cu -std=c++17 -O3 -DNDEBUG -DQWEN3TTS_CUDA "-DQWEN3TTS_ARCHITECTURES=\"${targets}\""
              ${QWEN3TTS_CUDA_FLAGS} -Xcompiler "${warnings}" -Werror=all-warnings
              "-I${CMAKE_CURRENT_SOURCE_DIR}/csrc" -MD -MF "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}" DEPFILE "${object}.d" COMMENT "nvcc ${name}" VERBATIM COMMAND_EXPAND_LISTS)
    list(APPEND objects "${object}")
  endforeach()
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()
