"""Declarations of `processor.h`."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "processor.h" nogil:
    ctypedef struct hash128:
        uint64_t first
        uint64_t second

    ctypedef struct key_hasher:
        pass

    uint64_t load_little64(const uint8_t* at) noexcept
    uint32_t load_little32(const uint8_t* at) noexcept
    void store_little32(uint8_t* at, uint32_t value) noexcept
    uint64_t load_big64(const uint8_t* at) noexcept
    uint32_t load_big32(const uint8_t* at) noexcept
    uint16_t load_big16(const uint8_t* at) noexcept
    void store_big(uint8_t* at, uint64_t value, int size) noexcept
    void prefetch(const void* at) noexcept
    bint contains(const uint8_t* data, int64_t size, const uint8_t* wanted, int64_t wanted_size) noexcept
    bint has_escape(const uint8_t* data, int64_t size, const uint8_t* flags) noexcept
    enum: COMPARED_BYTES
    int64_t next_candidate(const uint8_t* data, int64_t place, int64_t end, const uint64_t* windows) noexcept
    void prepare_crc32c() noexcept
    uint32_t crc32c_of(const uint8_t* data, int64_t size) noexcept
    uint32_t crc32c_unfolded(const uint8_t* data, int64_t size) noexcept
    uint32_t crc32c_by_tables(const uint8_t* data, int64_t size) noexcept
    hash128 siphash128(uint64_t k0, uint64_t k1, const uint8_t* data, int64_t size) noexcept
    void begin_hashing(key_hasher* hasher, uint64_t k0, uint64_t k1, int may_use_vectors) noexcept
    void hash_key(key_hasher* hasher, uint64_t* result, const uint8_t* data, int64_t size) noexcept
    void end_hashing(key_hasher* hasher) noexcept
