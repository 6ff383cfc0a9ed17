/* A forward of a dense decoder over new tokens, whose past is in the key/value caches of the embedded engine.
 *
 * One call takes rows: tokens that go on (one per sequence) and tokens of new prompts alike. A row's numbers are summed
 * in an order that depends on its own position alone, so that they are the same bits whatever other rows there are,
 * whether its past was computed by this call or by earlier ones, and however rows are divided over threads.
 *
 * Everything is float32. Each sum of products is one loop, `tile`: linear layers (weights packed by columns, see `struct
 * matrix`), scores (queries times transposed keys) and attended values (weights times values).
 *
 * `native_layout.py` has the same records; sizes are in elements.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define VECTORS 4 /* of a tile: ROWS * VECTORS sums are in registers */
#elif defined(__AVX__)
#define LANES 8
#define VECTORS 2
#else
#define LANES 4
#define VECTORS 4
#endif
#define ROWS 6
#define PANEL (LANES * VECTORS)
#define DEPTH 128  /* terms of a product that are added before their sum is added to those of others */
#define CHUNK 96   /* rows that go through the layers together */
#define QUERIES 32 /* that are compared with the same keys at a time */
#define MAX_HEAD 256

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t lanes __attribute__((vector_size(4 * LANES)));

/* weight [out, in] in panels of PANEL outputs, each [in][PANEL]; the last one is narrower. `out` is padded to 16. */
struct matrix {
    const float *panels, *bias;
    int64_t in, out;
};

/* size 0: none. centered: less the mean (LayerNorm), else RMS. The factor is offset + weight. */
struct norm {
    const float *weight, *bias;
    int64_t size, centered;
    double eps, offset;
};

struct layer {
    struct norm before_attention, after_attention, before_mlp, after_mlp, query, key;
    struct matrix qkv, output, inner, down;
    const float *cosine, *sine, *sinks; /* [positions, rotated]; sine is negative for the first of a pair */
    float *keys, *values, *prompt_keys, *prompt_values; /* [slots, capacity, kv_heads, head_dim] */
    int64_t heads, kv_heads, head_dim, rotated, interleaved, window, chunk; /* 0: no window, no chunk */
    int64_t width, gated, activation; /* width: of the feed-forward layer, padded to 16 */
    double scale, softcap, residual, output_scale, sharpness; /* softcap 0: none; sharpness: of silu */
};

struct model {
    const struct layer *layers;
    const float *embedding; /* [vocab, hidden] */
    struct norm norm;
    struct matrix head;
    int64_t num_layers, hidden, capacity, prompt_capacity, context;
    double embedding_multiplier, logit_multiplier, logit_softcap;
};

/* A token and what it sees: prompt_count tokens of a shared prompt, then own_count of its own slot. It is the last of
 * these itself and is written there; to the prompt where own_count is 0. logits: where its logits go, -1 for nowhere. */
struct row {
    int64_t token, prompt, prompt_count, slot, own_count, logits;
};

enum { SILU, GELU_TANH, GELU, RELU };

static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

/* ---- elementary functions, in forms that compilers turn into vectors */

/* e to the x within 2 units of the last place; 0 below the normal numbers. x = n log 2 + r, |r| <= log(2) / 2. */
static inline float exponential(float x) {
    float kept = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    float n = rintf(kept * 1.44269504f);
    float r = kept - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : x > 88.0f ? INFINITY : p * power;
}

/* Near 0 the quotient would lose digits, so a series takes over. */
static inline float hyperbolic_tangent(float x) {
    float square = x * x, e = exponential(-2.0f * fabsf(x));
    float series = x * (1.0f + square * (-0.33333333f + square * (0.13333333f - square * 0.05396825f)));
    float quotient = copysignf((1.0f - e) / (1.0f + e), x);
    return fabsf(x) < 0.1f ? series : quotient;
}

static void soften(float *values, int64_t n, float cap) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) values[i] = hyperbolic_tangent(values[i] / cap) * cap;
}

static void activate(const struct layer *l, float *inner) {
    int64_t n = l->width;
    float sharpness = l->sharpness;
    if (l->activation == SILU)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) inner[i] = inner[i] / (1.0f + exponential(-sharpness * inner[i]));
    else if (l->activation == GELU_TANH)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float x = inner[i];
            inner[i] = 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
        }
    else if (l->activation == GELU)
        for (int64_t i = 0; i < n; i++) inner[i] = 0.5f * inner[i] * (1.0f + erff(0.70710678f * inner[i]));
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++) inner[i] = inner[i] < 0.0f ? 0.0f : inner[i];
    if (l->gated)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) inner[i] *= inner[n + i];
}

static void normalise(const struct norm *norm, const float *in, float *out) {
    int64_t n = norm->size;
    float mean = 0.0f, square = 0.0f, offset = norm->offset;
    if (norm->centered) {
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < n; i++) mean += in[i];
        mean /= n;
    }
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < n; i++) square += (in[i] - mean) * (in[i] - mean);
    float factor = 1.0f / sqrtf(square / n + (float)norm->eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = (in[i] - mean) * factor;
    if (norm->weight)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] *= offset + norm->weight[i];
    if (norm->bias)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] += norm->bias[i];
}

/* ---- sums of products */

/* What a sum begins with, and where it goes. ADD keeps more digits, as parts of a long sum are added to each other;
 * CONTINUE gives the same bits wherever a sum is cut. */
enum mode { SET, ADD, CONTINUE };

/* c[r][0 .. vectors * LANES) (+)= sum over k of a[r][k] * b[k * stride + ...], for up to ROWS rows. */
static inline __attribute__((always_inline)) void tile_of(
    const int rows, const int vectors, const float *const *a, int64_t depth, const float *b, int64_t stride,
    float *const *c, enum mode mode) {
    vector sum[ROWS][VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = mode == CONTINUE ? (vector) * (loose *)(c[r] + v * LANES) : (vector){0};
    for (int64_t k = 0; k < depth; k++, b += stride)
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] += a[r][k] * *(const loose *)(b + v * LANES);
    /* All are read before one is written: missing rows are copies of another. */
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; mode == ADD && v < vectors; v++) sum[r][v] += *(loose *)(c[r] + v * LANES);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) *(loose *)(c[r] + v * LANES) = sum[r][v];
}

static inline __attribute__((always_inline)) void tile_of_rows(
    const int rows, int vectors, const float *const *a, int64_t depth, const float *b, int64_t stride, float *const *c,
    enum mode mode) {
    if (vectors == VECTORS)
        tile_of(rows, VECTORS, a, depth, b, stride, c, mode);
    else if (vectors == 3)
        tile_of(rows, 3, a, depth, b, stride, c, mode);
    else if (vectors == 2)
        tile_of(rows, 2, a, depth, b, stride, c, mode);
    else
        tile_of(rows, 1, a, depth, b, stride, c, mode);
}

/* The same for any number of rows, in tiles of equal height: eight are twice four. What is missing in the last tile are
 * copies of its last row. */
static void tiles(
    int vectors, int64_t rows, const float *const *a, int64_t a_start, int64_t depth, const float *b, int64_t stride,
    float *const *c, int64_t c_start, enum mode mode) {
    int64_t number = (rows + ROWS - 1) / ROWS, height = number ? (rows + number - 1) / number : 1;
    if (height == 5) height = ROWS;
    for (int64_t first = 0; first < rows; first += height) {
        const float *from[ROWS];
        float *to[ROWS];
        for (int r = 0; r < ROWS; r++) {
            from[r] = a[min(first + r, rows - 1)] + a_start;
            to[r] = c[min(first + r, rows - 1)] + c_start;
        }
        if (height == ROWS)
            tile_of_rows(ROWS, vectors, from, depth, b, stride, to, mode);
        else if (height == 4)
            tile_of_rows(4, vectors, from, depth, b, stride, to, mode);
        else if (height == 3)
            tile_of_rows(3, vectors, from, depth, b, stride, to, mode);
        else if (height == 2)
            tile_of_rows(2, vectors, from, depth, b, stride, to, mode);
        else
            tile_of_rows(1, vectors, from, depth, b, stride, to, mode);
    }
}

/* in: rows of m->in; out: rows of m->out. */
static void multiply(const struct matrix *m, int64_t rows, float *const *in, float *const *out) {
    for (int64_t r = 0; r < rows; r++)
        if (m->bias)
            memcpy(out[r], m->bias, 4 * m->out);
        else
            memset(out[r], 0, 4 * m->out);
    for (int64_t first = 0; first < m->out; first += PANEL) {
        int64_t width = min(PANEL, m->out - first);
        const float *panel = m->panels + first * m->in;
        for (int64_t k = 0; k < m->in; k += DEPTH)
            tiles(width / LANES, rows, (const float *const *)in, k, min(DEPTH, m->in - k), panel + k * width, width,
                  out, first, ADD);
    }
}

#if defined(__clang__)
/* Lane l is number from[l] of a and b, one behind the other. */
static inline __attribute__((always_inline)) vector shuffled(vector a, vector b, lanes from) {
    vector result;
    for (int l = 0; l < LANES; l++) result[l] = from[l] < LANES ? a[from[l]] : b[from[l] - LANES];
    return result;
}
#else
#define shuffled __builtin_shuffle
#endif

/* LANES rows of LANES numbers each become columns. In step s, lanes whose bit s is set change places with those of the
 * row whose bit s is: with s = 1, (a b) over (c d) becomes (a c) over (b d). */
static void transpose(vector *rows) {
    for (int s = 1; s < LANES; s *= 2) {
        lanes upper, lower;
        for (int l = 0; l < LANES; l++) {
            upper[l] = l & s ? LANES + l - s : l;
            lower[l] = l & s ? LANES + l : l + s;
        }
        for (int i = 0; i < LANES; i++)
            if (!(i & s)) {
                vector a = rows[i], b = rows[i + s];
                rows[i] = shuffled(a, b, upper);
                rows[i + s] = shuffled(a, b, lower);
            }
    }
}

/* ---- attention */

/* scores[q][0 .. count) of each query with `count` keys, `stride` apart; up to PANEL more are overwritten. */
static void score(int64_t queries, const float *const *query, const float *keys, int64_t stride, int64_t count,
                  int64_t dim, float *const *scores) {
    float columns[MAX_HEAD * PANEL] __attribute__((aligned(64)));
    for (int64_t first = 0; first < count; first += PANEL) {
        int64_t width = min(PANEL, (count - first + LANES - 1) / LANES * LANES);
        for (int64_t part = 0; part < width; part += LANES)
            for (int64_t d = 0; d < dim; d += LANES) {
                vector block[LANES];
                for (int l = 0; l < LANES; l++)
                    block[l] = *(const loose *)(keys + min(first + part + l, count - 1) * stride + d);
                transpose(block);
                for (int l = 0; l < LANES; l++) *(loose *)(columns + (d + l) * width + part) = block[l];
            }
        tiles(width / LANES, queries, query, 0, dim, columns, width, scores, first, SET);
    }
}

/* out[q] += sum over tokens of weights[q][token] * values[token] */
static void weigh(int64_t queries, const float *const *weights, const float *values, int64_t stride, int64_t count,
                  int64_t dim, float *const *out) {
    for (int64_t first = 0; first < dim; first += PANEL)
        tiles(min(PANEL, dim - first) / LANES, queries, weights, 0, count, values + first, stride, out, first, CONTINUE);
}

/* Scores of all `count` tokens up to the query's own become weights; those up to `limit`, of other rows, become 0. */
static void soften_scores(const struct layer *l, int64_t head, float *scores, int64_t count, int64_t limit) {
    float scale = l->scale, best = -INFINITY, total = 0.0f;
    int64_t first = l->window ? max(0, count - l->window) : 0;
    if (l->chunk) first = max(first, (count - 1) - (count - 1) % l->chunk);
#pragma omp simd
    for (int64_t t = 0; t < count; t++) scores[t] *= scale;
    if (l->softcap) soften(scores, count, l->softcap);
    for (int64_t t = 0; t < first; t++) scores[t] = -INFINITY;
#pragma omp simd reduction(max : best)
    for (int64_t t = 0; t < count; t++) best = scores[t] > best ? scores[t] : best;
    if (l->sinks) best = l->sinks[head] > best ? l->sinks[head] : best;
#pragma omp simd reduction(+ : total)
    for (int64_t t = 0; t < count; t++) {
        scores[t] = exponential(scores[t] - best);
        total += scores[t];
    }
    if (l->sinks) total += exponential(l->sinks[head] - best);
    float factor = 1.0f / total;
#pragma omp simd
    for (int64_t t = 0; t < count; t++) scores[t] *= factor;
    for (int64_t t = count; t < limit; t++) scores[t] = 0.0f;
}

/* Attend for rows that see the same prompt, and either as much of it each, or nothing else. */
static void attend(const struct model *m, const struct layer *l, const struct row *rows, int64_t count,
                   float *const *qkv, float *const *out, float *scratch) {
    int64_t dim = l->head_dim, group = l->heads / l->kv_heads, stride = l->kv_heads * dim, queries = count * group;
    int64_t limit = 0, prompt_count = 0;
    const float *query[queries];
    float *scores[queries], *attended[queries], *own[queries];
    for (int64_t r = 0; r < count; r++) {
        limit = max(limit, rows[r].prompt_count + rows[r].own_count);
        prompt_count = max(prompt_count, rows[r].prompt_count);
    }
    for (int64_t head = 0; head < l->kv_heads; head++) {
        for (int64_t q = 0; q < queries; q++) {
            int64_t place = (head * group + q % group) * dim;
            query[q] = qkv[q / group] + place;
            attended[q] = out[q / group] + place;
            memset(attended[q], 0, 4 * dim);
            scores[q] = scratch + q * (m->context + PANEL);
            own[q] = scores[q] + rows[q / group].prompt_count;
        }
        int64_t shared = max(0, rows[0].prompt) * m->prompt_capacity * stride + head * dim;
        if (prompt_count) score(queries, query, l->prompt_keys + shared, stride, prompt_count, dim, scores);
        for (int pass = 0; pass < 2; pass++) {
            if (pass) {
                for (int64_t q = 0; q < queries; q++)
                    soften_scores(l, head * group + q % group, scores[q],
                                  rows[q / group].prompt_count + rows[q / group].own_count, limit);
                if (prompt_count)
                    weigh(queries, (const float *const *)scores, l->prompt_values + shared, stride, prompt_count, dim,
                          attended);
            }
            for (int64_t r = 0, end; r < count; r = end) {
                /* Tokens of one new prompt have a slot in common, which is read for all of them. */
                int64_t longest = rows[r].own_count;
                for (end = r + 1; end < count && rows[end].slot == rows[r].slot; end++)
                    longest = max(longest, rows[end].own_count);
                int64_t start = rows[r].slot * m->capacity * stride + head * dim, q = r * group;
                if (!longest) continue;
                if (pass)
                    weigh((end - r) * group, (const float *const *)own + q, l->values + start, stride, longest, dim,
                          attended + q);
                else
                    score((end - r) * group, query + q, l->keys + start, stride, longest, dim, own + q);
            }
        }
    }
}

static void prepare_heads(const struct layer *l, const struct norm *norm, float *heads, int64_t count, int64_t position) {
    int64_t dim = l->head_dim, rotated = l->rotated, half = rotated / 2;
    for (int64_t i = 0; norm->size && i < count * dim; i += norm->size) normalise(norm, heads + i, heads + i);
    if (!rotated) return;
    const float *cosine = l->cosine + position * rotated, *sine = l->sine + position * rotated;
    int64_t apart = l->interleaved ? 1 : half;
    for (float *head = heads; head < heads + count * dim; head += dim)
        for (int64_t j = 0; j < half; j++) {
            int64_t i = l->interleaved ? 2 * j : j;
            float a = head[i], b = head[i + apart];
            head[i] = a * cosine[i] + b * sine[i];
            head[i + apart] = b * cosine[i + apart] + a * sine[i + apart];
        }
}

/* Write keys and values of new tokens, all of them before any row attends, then attend by runs of rows. */
static void mix(const struct model *m, const struct layer *l, const struct row *rows, int64_t count, float *const *qkv,
                float *const *out, float *scratch) {
    int64_t width = l->heads * l->head_dim, stride = l->kv_heads * l->head_dim;
    for (int64_t r = 0; r < count; r++) {
        const struct row *row = rows + r;
        int64_t position = row->prompt_count + row->own_count - 1;
        int64_t place = row->own_count ? row->slot * m->capacity + row->own_count - 1
                                       : row->prompt * m->prompt_capacity + row->prompt_count - 1;
        prepare_heads(l, &l->query, qkv[r], l->heads, position);
        prepare_heads(l, &l->key, qkv[r] + width, l->kv_heads, position);
        memcpy((row->own_count ? l->keys : l->prompt_keys) + place * stride, qkv[r] + width, 4 * stride);
        memcpy((row->own_count ? l->values : l->prompt_values) + place * stride, qkv[r] + width + stride, 4 * stride);
    }
    int64_t most = max(1, QUERIES / (l->heads / l->kv_heads));
    for (int64_t r = 0, end; r < count; r = end) {
        for (end = r + 1; end < min(count, r + most); end++)
            if (rows[end].prompt != rows[r].prompt || !rows[end].own_count != !rows[r].own_count ||
                (rows[r].own_count && rows[end].prompt_count != rows[r].prompt_count))
                break;
        attend(m, l, rows + r, end - r, qkv + r, out + r, scratch);
    }
}

/* ---- the whole forward */

/* stream += factor * norm(branch) */
static void add(const struct norm *norm, float factor, float *branch, float *stream, int64_t n) {
    if (norm->size) normalise(norm, branch, branch);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) stream[i] += factor * branch[i];
}

static void point_at(float **lines, float *start, int64_t stride) {
    for (int64_t r = 0; r < CHUNK; r++) lines[r] = start + r * stride;
}

static int64_t widest_projection(const struct model *m) {
    int64_t width = 0;
    for (const struct layer *l = m->layers; l < m->layers + m->num_layers; l++)
        width = max(width, max(l->qkv.out, l->inner.out));
    return width;
}

static int64_t widest_mixture(const struct model *m) {
    int64_t width = padded(m->hidden);
    for (const struct layer *l = m->layers; l < m->layers + m->num_layers; l++)
        width = max(width, l->heads * l->head_dim);
    return width;
}

int64_t panel_width(void) { return PANEL; }

/* Bytes that `forward` needs beside its arguments. */
int64_t scratch_bytes(const struct model *m) {
    int64_t queries = QUERIES;
    for (const struct layer *l = m->layers; l < m->layers + m->num_layers; l++)
        queries = max(queries, l->heads / l->kv_heads);
    int64_t row = padded(m->hidden) * 2 + widest_mixture(m) + widest_projection(m);
    return 4 * (CHUNK * row + queries * (m->context + PANEL) + LANES);
}

/* What a branch reads: the stream, or its norm where there is one. */
static float *const *branch_input(const struct norm *norm, int64_t rows, float *const *stream, float *const *normed) {
    for (int64_t r = 0; norm->size && r < rows; r++) normalise(norm, stream[r], normed[r]);
    return norm->size ? normed : stream;
}

/* Compute `count` rows, those of one new prompt side by side and in order. logits: [.., stride], a multiple of 16. */
void forward(const struct model *m, const struct row *rows, int64_t count, float *logits, int64_t stride,
             float *scratch) {
    int64_t hidden = m->hidden, line = padded(hidden), mixture = widest_mixture(m), projection = widest_projection(m);
    float *stream[CHUNK], *normed[CHUNK], *mixed[CHUNK], *inner[CHUNK], *last[CHUNK], *wanted[CHUNK];
    point_at(stream, scratch, line);
    point_at(normed, scratch += CHUNK * line, line);
    point_at(mixed, scratch += CHUNK * line, mixture);
    point_at(inner, scratch += CHUNK * mixture, projection);
    scratch += CHUNK * projection;
    for (; count > 0; rows += CHUNK, count -= CHUNK) {
        int64_t n = min(count, CHUNK), outputs = 0;
        for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < hidden; i++)
                stream[r][i] = m->embedding[rows[r].token * hidden + i] * (float)m->embedding_multiplier;
        for (const struct layer *l = m->layers; l < m->layers + m->num_layers; l++) {
            multiply(&l->qkv, n, branch_input(&l->before_attention, n, stream, normed), inner);
            mix(m, l, rows, n, inner, mixed, scratch);
            multiply(&l->output, n, mixed, normed);
            for (int64_t r = 0; r < n; r++) add(&l->after_attention, l->residual, normed[r], stream[r], hidden);
            multiply(&l->inner, n, branch_input(&l->before_mlp, n, stream, normed), inner);
            for (int64_t r = 0; r < n; r++) activate(l, inner[r]);
            multiply(&l->down, n, inner, normed);
            for (int64_t r = 0; r < n; r++) {
                add(&l->after_mlp, l->residual, normed[r], stream[r], hidden);
                for (int64_t i = 0; i < hidden; i++) stream[r][i] *= (float)l->output_scale;
            }
        }
        for (int64_t r = 0; r < n; r++)
            if (rows[r].logits >= 0) {
                wanted[outputs] = logits + rows[r].logits * stride;
                last[outputs++] = stream[r];
            }
        multiply(&m->head, outputs, branch_input(&m->norm, outputs, last, normed), wanted);
        for (int64_t r = 0; r < outputs; r++) {
            for (int64_t i = 0; i < stride; i++) wanted[r][i] *= (float)m->logit_multiplier;
            if (m->logit_softcap) soften(wanted[r], stride, m->logit_softcap);
        }
    }
}
