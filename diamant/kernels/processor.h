/* Processor features that Cython lacks: unaligned loads, CRC-32C, SipHash and prefetch.

   Callers check all bounds. Only instructions that the processor supports are used; for gcc and clang. */

#ifndef DIAMANT_PROCESSOR_H
#define DIAMANT_PROCESSOR_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* What the processor offers and the system keeps over a change of threads; asked without the compiler's runtime, whose
   `__builtin_cpu_supports` cannot be linked by all. */
enum { HAS_CRC = 1, HAS_VECTORS = 2, HAS_FOLDING = 4, HAS_WIDE = 8 };

static int find_features(void) {
    int features = 0;
#if defined(__x86_64__)
    unsigned int a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    int has_multiplication = (c & bit_PCLMUL) != 0;
    if (c & bit_SSE4_2) features |= HAS_CRC;
    if (!(c & bit_OSXSAVE)) return features;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features; /* the registers of SSE and AVX */
    if (b & bit_AVX2) features |= HAS_WIDE;
    /* The masks, the upper halves of the first 16 registers of 512 bits, and the others. */
    if ((low & 0xe0) != 0xe0 || !(b & bit_AVX512F)) return features;
    features |= HAS_VECTORS;
    if (features & HAS_CRC && has_multiplication && c & bit_VPCLMULQDQ) features |= HAS_FOLDING;
#elif defined(__ARM_FEATURE_CRC32)
    features = HAS_CRC;
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & 1 << 7) features = HAS_CRC; /* HWCAP_CRC32 */
#endif
    return features;
}

/* Return whether the processor has a feature. It is asked once: in a virtual machine that takes microseconds. */
static inline int has_feature(int feature) {
    static int known = -1;
    if (known < 0) known = find_features();
    return (known & feature) != 0;
}

static inline uint64_t load_little64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline uint32_t load_little32(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void store_little32(uint8_t *at, uint32_t value) {
    for (int index = 0; index < 4; index++) at[index] = (uint8_t)(value >> (8 * index));
}

static inline uint64_t load_big64(const uint8_t *at) { return __builtin_bswap64(load_little64(at)); }

static inline uint32_t load_big32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint16_t load_big16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

/* Write the low `size` bytes of `value`, big-endian. */
static inline void store_big(uint8_t *at, uint64_t value, int size) {
    for (int index = 0; index < size; index++) at[index] = (uint8_t)(value >> (8 * (size - 1 - index)));
}

/* Prefetch an address into the processor's cache for writing. */
static inline void prefetch(const void *at) { __builtin_prefetch(at, 1, 3); }

typedef uint8_t sixteen_bytes __attribute__((vector_size(16)));
#define PLACES 64

/* True if `data` contains the bytes `wanted`. Places that have the first two and the last of them are rare: they are looked for 64 at a
   time. */
static inline int contains(const uint8_t *data, int64_t size, const uint8_t *wanted, int64_t wanted_size) {
    int64_t at = 0, span = wanted_size - 1;
    sixteen_bytes first, second, last;
    if (span > 0) {
        memset(&first, wanted[0], 16);
        memset(&second, wanted[1], 16);
        memset(&last, wanted[span], 16);
        for (; at + span + PLACES <= size; at += PLACES) {
            sixteen_bytes equal = {0};
            uint64_t found[2];
            for (int64_t place = at; place < at + PLACES; place += 16) {
                sixteen_bytes starts, seconds, ends;
                memcpy(&starts, data + place, 16);
                memcpy(&seconds, data + place + 1, 16);
                memcpy(&ends, data + place + span, 16);
                equal |= (sixteen_bytes)((starts == first) & (seconds == second) & (ends == last));
            }
            memcpy(found, &equal, 16);
            if (!(found[0] | found[1])) continue;
            for (int64_t place = at; place < at + PLACES; place++)
                if (data[place] == wanted[0] && !memcmp(data + place, wanted, (size_t)wanted_size)) return 1;
        }
    }
    return memmem(data + at, (size_t)(size - at), wanted, (size_t)wanted_size) != NULL;
}

static inline int is_octal(uint8_t byte) { return byte >= '0' && byte <= '7'; }

/* True if `data` contains a backslash before a byte whose flag is set in `flags`, or before two octal digits. In UTF-16 a zero may
   follow each byte. */
static inline int has_escape(const uint8_t *data, int64_t size, const uint8_t *flags) {
    const uint8_t *end = data + size, *at = data;
    while ((at = memchr(at, '\\', (size_t)(end - at))) != NULL) {
        const uint8_t *next = ++at;
        next += next < end && !*next;
        if (next == end) return flags[0];
        if (flags[*next]) return 1;
        if (!is_octal(*next++)) continue;
        next += next < end && !*next;
        if (next < end && is_octal(*next)) return 1;
    }
    return 0;
}

/* -- Eight words at once ---------------------------------------------------------------------------------------------- */

typedef uint32_t eight_words __attribute__((vector_size(32)));
#define COMPARED_BYTES 128

static inline __attribute__((always_inline)) int64_t compare_words(
    const uint8_t *data, int64_t place, int64_t end, const uint64_t *windows) {
    eight_words halves[4];
    for (int which = 0; which < 4; which++) {
        uint8_t bytes[4];
        uint32_t word;
        store_little32(bytes, (uint32_t)windows[which]);
        memcpy(&word, bytes, 4);
        halves[which] = word + (eight_words){0};
    }
    for (; place + COMPARED_BYTES + 4 <= end; place += COMPARED_BYTES) {
        eight_words equal = {0};
        uint64_t found[4];
        for (int at = 0; at < COMPARED_BYTES; at += 32) {
            eight_words words;
            memcpy(&words, data + place + at, 32);
            equal |= (eight_words)((words == halves[0]) | (words == halves[1]) | (words == halves[2]) | (words == halves[3]));
        }
        memcpy(found, &equal, 32);
        if (found[0] | found[1] | found[2] | found[3]) break;
    }
    return place;
}

#if defined(__x86_64__)
/* The same, with registers of 32 bytes. */
__attribute__((target("avx2"))) static int64_t compare_wide(
    const uint8_t *data, int64_t place, int64_t end, const uint64_t *windows) {
    return compare_words(data, place, end, windows);
}
#endif

/* The first place, in steps of COMPARED_BYTES, where one of the next 32 words of 4 bytes is among the lower halves of four windows;
   or the first place that fewer than COMPARED_BYTES + 4 bytes follow. */
static inline int64_t next_candidate(const uint8_t *data, int64_t place, int64_t end, const uint64_t *windows) {
#if defined(__x86_64__)
    if (has_feature(HAS_WIDE)) return compare_wide(data, place, end, windows);
#endif
    return compare_words(data, place, end, windows);
}

/* -- CRC-32C ---------------------------------------------------------------------------------------------------------- */

/* Size of each of three lanes computed in parallel: an instruction takes three cycles, but one can start per cycle. The processor
   does not foresee lanes: what is outside of its cache takes half as long if it is prefetched two rounds ahead. */
#define LANE_BYTES 512
#define AHEAD_BYTES (6 * LANE_BYTES)
#define CACHE_LINE_BYTES 64

static uint32_t crc_bytes[8][256]; /* [k][b]: effect of byte b on the register when k more bytes follow */
static uint32_t crc_lanes[4][256]; /* [k][b]: result of byte k of the register with value b after a lane of zeros */

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *data, int64_t size) {
    while (size >= 8) {
        uint64_t word = load_little64(data) ^ crc;
        crc = 0;
        for (int index = 0; index < 8; index++) crc ^= crc_bytes[7 - index][word >> (8 * index) & 0xff];
        data += 8;
        size -= 8;
    }
    while (size-- > 0) crc = crc >> 8 ^ crc_bytes[0][(crc ^ *data++) & 0xff];
    return crc;
}

static inline uint32_t crc_after_lane(uint32_t crc) {
    return crc_lanes[0][crc & 0xff] ^ crc_lanes[1][crc >> 8 & 0xff] ^ crc_lanes[2][crc >> 16 & 0xff] ^ crc_lanes[3][crc >> 24];
}

#if defined(__x86_64__) || defined(__aarch64__)
/* Compilers differ in how they offer an instruction of later processors than those that they compile for. */
static inline uint64_t crc_word(uint64_t crc, uint64_t word) {
#if defined(__x86_64__)
    __asm__("crc32q %1, %0" : "+r"(crc) : "r"(word));
#else
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(crc) : "r"(word));
#endif
    return crc;
}

static uint32_t crc_by_instructions(uint32_t register_, const uint8_t *data, int64_t size) {
    uint64_t crc = register_;
    while (size >= 3 * LANE_BYTES) {
        uint64_t second = 0, third = 0;
        for (int at = 0; at < 3 * LANE_BYTES; at += CACHE_LINE_BYTES) __builtin_prefetch(data + AHEAD_BYTES + at);
        for (int at = 0; at < LANE_BYTES; at += 8) {
            crc = crc_word(crc, load_little64(data + at));
            second = crc_word(second, load_little64(data + LANE_BYTES + at));
            third = crc_word(third, load_little64(data + 2 * LANE_BYTES + at));
        }
        crc = crc_after_lane(crc_after_lane((uint32_t)crc) ^ (uint32_t)second) ^ third;
        data += 3 * LANE_BYTES;
        size -= 3 * LANE_BYTES;
    }
    while (size >= 8) {
        crc = crc_word(crc, load_little64(data));
        data += 8;
        size -= 8;
    }
    return crc_by_tables((uint32_t)crc, data, size);
}
#endif

#if defined(__x86_64__)
/* -- by carry-less multiplication: twice as fast as the instructions; Gopal et al., "Fast CRC Computation for Generic
   Polynomials Using PCLMULQDQ Instruction", Intel, 2009, with registers of 64 bytes -- */
#define FOLDED_BYTES 256

static uint64_t crc_folds[4]; /* [0, 1]: factors of a register that 256 bytes follow; [2, 3]: that 64 bytes follow */

/* x to the power `degree` modulo the polynomial, in the upper half of a word whose first bit is the highest degree. */
static uint64_t crc_power(int degree) {
    uint32_t crc = 0x80000000u;
    while (degree-- > 0) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    return (uint64_t)crc << 32;
}

/* `next`, plus the register as if moved over the bytes up to `next`. A product is one degree too high. */
#define FOLD(register_, factors, next)                                                   \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(register_, factors, 0x00),         \
                              _mm512_clmulepi64_epi128(register_, factors, 0x11), next, 0x96)

__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"))) static uint32_t crc_by_folding(
    uint32_t crc, const uint8_t *data, int64_t size) {
    if (size >= FOLDED_BYTES) {
        __m512i far = _mm512_set4_epi64(crc_folds[1], crc_folds[0], crc_folds[1], crc_folds[0]);
        __m512i near = _mm512_set4_epi64(crc_folds[3], crc_folds[2], crc_folds[3], crc_folds[2]);
        __m512i first = _mm512_loadu_si512(data), second = _mm512_loadu_si512(data + 64);
        __m512i third = _mm512_loadu_si512(data + 128), fourth = _mm512_loadu_si512(data + 192);
        uint8_t folded[64];
        first = _mm512_xor_si512(first, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
        data += FOLDED_BYTES;
        size -= FOLDED_BYTES;
        while (size >= FOLDED_BYTES) {
            first = FOLD(first, far, _mm512_loadu_si512(data));
            second = FOLD(second, far, _mm512_loadu_si512(data + 64));
            third = FOLD(third, far, _mm512_loadu_si512(data + 128));
            fourth = FOLD(fourth, far, _mm512_loadu_si512(data + 192));
            data += FOLDED_BYTES;
            size -= FOLDED_BYTES;
        }
        _mm512_storeu_si512(folded, FOLD(FOLD(FOLD(first, near, second), near, third), near, fourth));
        crc = crc_by_instructions(0, folded, sizeof folded);
    }
    return crc_by_instructions(crc, data, size);
}
#endif

static uint32_t (*crc_register)(uint32_t, const uint8_t *, int64_t) = 0;
static uint32_t (*crc_unfolded)(uint32_t, const uint8_t *, int64_t) = 0;

/* Build the tables and choose an implementation; call once in each module that computes CRCs, before all other calls. */
static inline void prepare_crc32c(void) {
    for (int byte = 0; byte < 256; byte++) {
        uint32_t crc = (uint32_t)byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        crc_bytes[0][byte] = crc;
    }
    for (int following = 1; following < 8; following++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_bytes[following - 1][byte];
            crc_bytes[following][byte] = crc >> 8 ^ crc_bytes[0][crc & 0xff];
        }
    for (int place = 0; place < 4; place++)
        for (int byte = 1; byte < 256; byte++) {
            int rest = byte & (byte - 1);
            uint32_t crc = (uint32_t)byte << (8 * place);
            /* The entry of a byte is the xor of the entries of one bit and of the remaining bits. */
            if (rest)
                crc = crc_lanes[place][rest] ^ crc_lanes[place][byte ^ rest];
            else
                for (int zero = 0; zero < LANE_BYTES; zero++) crc = crc >> 8 ^ crc_bytes[0][crc & 0xff];
            crc_lanes[place][byte] = crc;
        }
    crc_unfolded = crc_by_tables;
#if defined(__x86_64__) || defined(__aarch64__)
    if (has_feature(HAS_CRC)) crc_unfolded = crc_by_instructions;
#endif
    crc_register = crc_unfolded;
#if defined(__x86_64__)
    if (has_feature(HAS_FOLDING)) {
        crc_folds[0] = crc_power(8 * FOLDED_BYTES + 63);
        crc_folds[1] = crc_power(8 * FOLDED_BYTES - 1);
        crc_folds[2] = crc_power(8 * 64 + 63);
        crc_folds[3] = crc_power(8 * 64 - 1);
        crc_register = crc_by_folding;
    }
#endif
}

static inline uint32_t crc32c_of(const uint8_t *data, int64_t size) { return ~crc_register(0xffffffffu, data, size); }

/* `crc32c_of` as computed on a processor that cannot fold, and on one without any instruction for it. */
static inline uint32_t crc32c_unfolded(const uint8_t *data, int64_t size) { return ~crc_unfolded(0xffffffffu, data, size); }
static inline uint32_t crc32c_by_tables(const uint8_t *data, int64_t size) { return ~crc_by_tables(0xffffffffu, data, size); }

/* -- SipHash-2-4 with a result of 128 bits (Aumasson and Bernstein) --------------------------------------------------- */

typedef struct {
    uint64_t first, second;
} hash128;

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))
/* Each state variable is one word per hash, or a vector of them. */
#define SIP_ROUND \
    v0 += v1; v2 += v3; v1 = ROTATE(v1, 13); v3 = ROTATE(v3, 16); v1 ^= v0; v3 ^= v2; v0 = ROTATE(v0, 32); \
    v2 += v1; v0 += v3; v1 = ROTATE(v1, 17); v3 = ROTATE(v3, 21); v1 ^= v2; v3 ^= v0; v2 = ROTATE(v2, 32);

/* The last word of a hash: the bytes after the whole words, with the size in the top byte. */
static inline uint64_t sip_tail(const uint8_t *data, int64_t size) {
    int64_t count = size & 7;
    uint64_t word = (uint64_t)size << 56;
    if (count == 0) return word;
    data += size - count;
    /* Load eight bytes and shift earlier ones out: faster than single bytes. */
    if (size >= 8) return word | load_little64(data + count - 8) >> (64 - 8 * count);
    for (int64_t index = 0; index < count; index++) word |= (uint64_t)data[index] << (8 * index);
    return word;
}

static inline hash128 siphash128(uint64_t k0, uint64_t k1, const uint8_t *data, int64_t size) {
    uint64_t v0 = 0x736f6d6570736575u ^ k0, v1 = 0x646f72616e646f6du ^ k1 ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261u ^ k0, v3 = 0x7465646279746573u ^ k1;
    hash128 result;
    for (int64_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word = load_little64(data + at);
        v3 ^= word;
        SIP_ROUND SIP_ROUND
        v0 ^= word;
    }
    uint64_t tail = sip_tail(data, size);
    v3 ^= tail;
    SIP_ROUND SIP_ROUND
    v0 ^= tail;
    v2 ^= 0xee;
    SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND
    result.first = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND
    result.second = v0 ^ v1 ^ v2 ^ v3;
    return result;
}

/* -- Hashes of many keys: eight at a time, if the processor has vectors of eight words --------------------------------- */

#define LANES 8
/* Keys of more words than this are hashed immediately, one by one. */
#define MOST_WORDS 7

/* The waiting keys by their number of whole words; a hasher serves one key (k0, k1). */
typedef struct {
    uint64_t k0, k1;
    int has_vectors;
    struct waiting_keys {
        int64_t count;
        const uint8_t *data[LANES];
        int64_t sizes[LANES];
        uint64_t *results[LANES];
    } waiting[MOST_WORDS + 1];
} key_hasher;

static inline void hash_to(uint64_t *result, uint64_t k0, uint64_t k1, const uint8_t *data, int64_t size) {
    hash128 found = siphash128(k0, k1, data, size);
    result[0] = found.first;
    result[1] = found.second;
}

#if defined(__x86_64__)
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

#define EACH_LANE(expression) \
    { expression(0), expression(1), expression(2), expression(3), expression(4), expression(5), expression(6), expression(7) }

__attribute__((target("avx512f"))) static void hash_together(
    uint64_t k0, uint64_t k1, const struct waiting_keys *keys, int64_t words) {
    lanes v0 = (lanes){} + (0x736f6d6570736575u ^ k0), v1 = (lanes){} + (0x646f72616e646f6du ^ k1 ^ 0xee);
    lanes v2 = (lanes){} + (0x6c7967656e657261u ^ k0), v3 = (lanes){} + (0x7465646279746573u ^ k1);
    for (int64_t at = 0; at < 8 * words; at += 8) {
#define WORD_OF(lane) load_little64(keys->data[lane] + at)
        lanes word = EACH_LANE(WORD_OF);
        v3 ^= word;
        SIP_ROUND SIP_ROUND
        v0 ^= word;
    }
#define TAIL_OF(lane) sip_tail(keys->data[lane], keys->sizes[lane])
    lanes tail = EACH_LANE(TAIL_OF);
    v3 ^= tail;
    SIP_ROUND SIP_ROUND
    v0 ^= tail;
    v2 ^= 0xee;
    SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND
    lanes first = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    SIP_ROUND SIP_ROUND SIP_ROUND SIP_ROUND
    lanes second = v0 ^ v1 ^ v2 ^ v3;
    for (int lane = 0; lane < LANES; lane++) {
        keys->results[lane][0] = first[lane];
        keys->results[lane][1] = second[lane];
    }
}
#endif

static inline void begin_hashing(key_hasher *hasher, uint64_t k0, uint64_t k1, int may_use_vectors) {
    hasher->k0 = k0;
    hasher->k1 = k1;
    hasher->has_vectors = 0;
#if defined(__x86_64__)
    hasher->has_vectors = may_use_vectors && has_feature(HAS_VECTORS);
#endif
    for (int words = 0; words <= MOST_WORDS; words++) hasher->waiting[words].count = 0;
}

/* Hash a key, now or later, to the two words at `result`; its bytes must stay until `end_hashing`. */
static inline void hash_key(key_hasher *hasher, uint64_t *result, const uint8_t *data, int64_t size) {
    int64_t words = size >> 3;
    if (!hasher->has_vectors || words > MOST_WORDS) {
        hash_to(result, hasher->k0, hasher->k1, data, size);
        return;
    }
#if defined(__x86_64__)
    struct waiting_keys *keys = &hasher->waiting[words];
    keys->data[keys->count] = data;
    keys->sizes[keys->count] = size;
    keys->results[keys->count] = result;
    if (++keys->count == LANES) {
        hash_together(hasher->k0, hasher->k1, keys, words);
        keys->count = 0;
    }
#endif
}

/* Hash all waiting keys. */
static inline void end_hashing(key_hasher *hasher) {
    for (int words = 0; words <= MOST_WORDS; words++) {
        struct waiting_keys *keys = &hasher->waiting[words];
        for (int64_t index = 0; index < keys->count; index++)
            hash_to(keys->results[index], hasher->k0, hasher->k1, keys->data[index], keys->sizes[index]);
        keys->count = 0;
    }
}

#endif
