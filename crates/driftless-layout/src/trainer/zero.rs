//! ZeRO-1, as Megatron-Core's distributed optimizer cuts it: which range of a flat parameter a rank owns.
//!
//! One buffer holds the parameters of one dtype, dense or expert, of one rank. They are laid out in reverse
//! registration order, starts aligned to 64 elements; a bucket is closed once it holds `bucket_elements`, is
//! padded to a multiple of lcm(group, 128), and is cut into `group` equal ranges, blind to parameter borders. So
//! each element has exactly one owner in the group (LY-1), and most ranks own nothing of a given parameter.
//! A shared embedding has a bucket of its own.

use std::ops::Range;

/// Starts of parameters are aligned to this many elements.
const START_ALIGNMENT: u64 = 64;
/// Buckets are padded to a multiple of this and of the group.
const BUCKET_ALIGNMENT: u64 = 128;

/// A parameter of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferParam {
    pub(super) elements: u64,
    /// Shared with another pipeline stage: it closes a bucket of its own.
    pub(super) is_shared: bool,
}

/// The size at which buckets are closed, for a data parallel size.
pub(super) fn default_bucket_elements(dp: u64) -> u64 {
    40_000_000.max(1_000_000 * dp)
}

/// Where parameters and buckets lie in a buffer.
pub(super) struct Buffer {
    /// Each parameter's range and bucket, in registration order.
    params: Vec<(Range<u64>, usize)>,
    buckets: Vec<Range<u64>>,
    group: u64,
}

impl Buffer {
    /// Lays out `params`, given in registration order, for a group of `group` data parallel ranks.
    pub(super) fn new(params: &[BufferParam], group: u64, bucket_elements: u64) -> Self {
        let mut layout = Self { params: Vec::with_capacity(params.len()), buckets: Vec::new(), group };
        let (mut bucket_start, mut end) = (0, 0);
        for param in params.iter().rev() {
            let mut start = u64::next_multiple_of(end, START_ALIGNMENT);
            let is_bucket_open = end > bucket_start;
            if param.is_shared && is_bucket_open {
                start = layout.close(bucket_start, start);
                bucket_start = start;
            }
            end = start + param.elements;
            layout.params.push((start..end, layout.buckets.len()));
            if param.is_shared || end - bucket_start >= bucket_elements {
                end = layout.close(bucket_start, end);
                bucket_start = end;
            }
        }
        if end > bucket_start {
            layout.close(bucket_start, end);
        }
        layout.params.reverse();
        layout
    }

    /// Closes the bucket from `start`; returns its padded end, where the next one starts.
    fn close(&mut self, start: u64, end: u64) -> u64 {
        let end = end.next_multiple_of(lcm(self.group, BUCKET_ALIGNMENT));
        self.buckets.push(start..end);
        end
    }

    /// What `rank` of the group owns of parameter `index`, as a range of its flat elements; possibly empty.
    pub(super) fn owned(&self, index: usize, rank: u64) -> Range<u64> {
        let (param, bucket) = &self.params[index];
        let bucket = &self.buckets[*bucket];
        let share = (bucket.end - bucket.start) / self.group;
        let from = (bucket.start + rank * share).clamp(param.start, param.end);
        let to = (bucket.start + (rank + 1) * share).clamp(param.start, param.end);
        from - param.start..to - param.start
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests;
