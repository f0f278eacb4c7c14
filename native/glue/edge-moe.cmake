# SPDX-License-Identifier: MIT
# Included by ggml/src/CMakeLists.txt: the cache lives in ggml-base, the one library that both libllama and every CPU
# backend link, whether backends are linked or loaded at run time; so loader and backend share one instance.
if (NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    message(FATAL_ERROR "edge-moe: the expert cache is written for Linux, not for ${CMAKE_SYSTEM_NAME}")
endif()

file(GLOB EDGE_MOE_SOURCES CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_LIST_DIR}/../src/core/*.cpp
    ${CMAKE_CURRENT_LIST_DIR}/../src/io/*.cpp
    ${CMAKE_CURRENT_LIST_DIR}/../src/engine/*.cpp
    ${CMAKE_CURRENT_LIST_DIR}/*.cpp)

target_sources(ggml-base PRIVATE ${EDGE_MOE_SOURCES})
target_include_directories(ggml-base PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_LIST_DIR}>)
