/* A plain C program that knows nothing of Berth but two optional marks: it smooths a grid over and over, with scratch
 * memory from malloc as such programs do. Alone it runs with the C library's malloc; with the example's library
 * preloaded (LD_PRELOAD), one step is recorded, planned, and all others are served from one arena. The sum that it
 * prints is the same either way. Usage: example_stencil [STEPS] */
#include <stdio.h>
#include <stdlib.h>

/* Where a run begins and ends. Absent unless the library is preloaded. */
__attribute__((weak)) void berth_begin_run(const char* key);
__attribute__((weak)) void berth_end_run(void);

enum { kSide = 192 };

static double step(double* grid) {
  const size_t cells = (size_t)kSide * kSide;
  double* rows = malloc(cells * sizeof *rows);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const int left = x > 0 ? x - 1 : x, right = x < kSide - 1 ? x + 1 : x;
      rows[y * kSide + x] = 0.25 * grid[y * kSide + left] + 0.5 * grid[y * kSide + x] + 0.25 * grid[y * kSide + right];
    }
  double* columns = malloc(cells * sizeof *columns);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const int up = y > 0 ? y - 1 : y, down = y < kSide - 1 ? y + 1 : y;
      columns[y * kSide + x] = 0.25 * rows[up * kSide + x] + 0.5 * rows[y * kSide + x] + 0.25 * rows[down * kSide + x];
    }
  free(rows);
  double* sums = calloc(kSide, sizeof *sums);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) sums[y] += columns[y * kSide + x] * (x % 7);
  double total = 0;
  for (int y = 0; y < kSide; ++y) total += sums[y];
  for (size_t i = 0; i < cells; ++i) grid[i] = columns[i];
  free(sums);
  free(columns);
  return total;
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 50;
  double* grid = malloc((size_t)kSide * kSide * sizeof *grid);
  for (int i = 0; i < kSide * kSide; ++i) grid[i] = i % 13;
  double total = 0;
  for (int i = 0; i < steps; ++i) {
    if (berth_begin_run) berth_begin_run("step");
    total += step(grid);
    if (berth_end_run) berth_end_run();
  }
  printf("%.9g\n", total);
  free(grid);
  return 0;
}
