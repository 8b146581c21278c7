// One function, compiled for the base instruction set and for a wider one; the loader picks.
#pragma once

// The sanitizers' runtimes are not ready yet when the loader runs the resolvers
// that do the picking.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define KADRIL_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define KADRIL_CLONES
#endif
