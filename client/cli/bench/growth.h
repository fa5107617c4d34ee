// Whether a process grows: its memory and descriptors sampled over time, and a line through them.

#ifndef PENSTOCK_CLIENT_CLI_BENCH_GROWTH_H_
#define PENSTOCK_CLIENT_CLI_BENCH_GROWTH_H_

#include <cstdint>
#include <vector>

namespace penstock::cli {

class Growth {
 public:
  // Looks at this process. `x`: time, or operations so far.
  void Sample(double x);
  // A value that was read elsewhere.
  void Sample(double x, uint64_t rss_bytes, uint64_t descriptors);

  struct Line {
    uint64_t first = 0, last = 0, most = 0;
    double slope = 0;  // Per unit of x, by least squares over the second half of the samples.
  };
  Line Memory() const;
  Line Descriptors() const;

 private:
  struct Point {
    double x;
    double rss, fds;
  };
  Line Fit(double Point::*value) const;

  std::vector<Point> points_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLIENT_CLI_BENCH_GROWTH_H_
