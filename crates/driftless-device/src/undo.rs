//! The undo log of one destination tensor: what stood there before an attempt wrote.
//!
//! - **DV-2 (undo is exact).** The old words of a block are in the log before the first of them is overwritten, and they
//!   are put back in the reverse order of writing: so the log undoes a scatter that finished, and one that was cut
//!   short anywhere, and one that wrote a word twice.

use crate::DeviceError;
use crate::buffer::HOST;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Words that were overwritten on a device, which keeps them.
pub trait DeviceUndo: fmt::Debug + Send + Sync + 'static {
    /// The device, such as `cuda:0`.
    fn device(&self) -> &str;

    /// How many words it would put back.
    fn words(&self) -> usize;

    /// The memory that it takes on the device, in bytes.
    fn bytes(&self) -> usize;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// The old words of one tensor, in the order in which they were overwritten.
///
/// Owned by whoever owns the tensor's binding, so that it outlives the task that writes. One log per destination
/// tensor; reusable: [`Self::clear`] keeps the memory.
#[derive(Clone, Debug, Default)]
pub struct UndoLog {
    records: Vec<Record>,
    /// Distances from the base of their record, for scattered words only.
    distances: Vec<u32>,
    words: Vec<u16>,
    /// One more than the highest word index in the log.
    extent: usize,
    /// What a device keeps, in the order of writing; a tensor is on the host or on a device, never on both.
    on_device: Vec<Arc<dyn DeviceUndo>>,
}

/// Some words that were overwritten together.
#[derive(Clone, Copy, Debug)]
struct Record {
    base: usize,
    first_word: usize,
    count: usize,
    placement: Placement,
}

#[derive(Clone, Copy, Debug)]
enum Placement {
    /// `count` words in a row from `base`.
    Contiguous,
    /// Word `i` at `base + distances[first_distance + i]`.
    Scattered { first_distance: usize },
}

impl UndoLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to undo.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.on_device.is_empty()
    }

    /// The number of words that the log would put back.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words.len() + self.on_device.iter().map(|record| record.words()).sum::<usize>()
    }

    /// Bytes that the entries take: what a memory report should count for this log.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let on_host =
            size_of_val(&self.records[..]) + size_of_val(&self.distances[..]) + size_of_val(&self.words[..]);
        on_host + self.on_device.iter().map(|record| record.bytes()).sum::<usize>()
    }

    /// Forgets every entry, and keeps the memory for the next attempt.
    pub fn clear(&mut self) {
        self.records.clear();
        self.distances.clear();
        self.words.clear();
        self.extent = 0;
        self.on_device.clear();
    }

    /// DV-2: notes words that a device keeps, before they are overwritten.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only devices keep words"))]
    pub(crate) fn record_on_device(&mut self, record: Arc<dyn DeviceUndo>) {
        self.on_device.push(record);
    }

    /// What devices keep, in the order of writing.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only devices keep words"))]
    pub(crate) fn on_device(&self) -> &[Arc<dyn DeviceUndo>] {
        &self.on_device
    }

    /// Notes that the words at `base..` are about to be overwritten.
    pub(crate) fn record_run(&mut self, base: usize, old: &[u16]) {
        let record =
            Record { base, first_word: self.words.len(), count: old.len(), placement: Placement::Contiguous };
        self.words.extend_from_slice(old);
        self.close(record, base + old.len());
    }

    /// Notes that the words of `dst` at `targets`, strictly rising, are about to be overwritten.
    pub(crate) fn record_scattered(&mut self, dst: &[u16], targets: &[usize]) {
        let mut rest = targets;
        while let Some(&base) = rest.first() {
            let reach = base.saturating_add(u32::MAX as usize);
            let (near, far) = rest.split_at(rest.partition_point(|&target| target <= reach));
            self.record_near(dst, base, near);
            rest = far;
        }
    }

    fn record_near(&mut self, dst: &[u16], base: usize, targets: &[usize]) {
        let record = Record {
            base,
            first_word: self.words.len(),
            count: targets.len(),
            placement: Placement::Scattered { first_distance: self.distances.len() },
        };
        self.words.extend(targets.iter().map(|&target| dst[target]));
        self.distances.extend(targets.iter().map(|&target| near_distance(base, target)));
        self.close(record, targets.last().map_or(0, |&last| last + 1));
    }

    /// DV-2: a record counts from here on; words that were copied for one that was never closed are ignored.
    fn close(&mut self, record: Record, end: usize) {
        self.records.push(record);
        self.extent = self.extent.max(end);
    }

    /// Puts every old word back into `dst`, in reverse, and then forgets them.
    ///
    /// Cut short, it can be run again: the log is emptied at the very end.
    pub(crate) fn restore(&mut self, dst: &mut [u16]) -> Result<(), DeviceError> {
        if let Some(record) = self.on_device.first() {
            return Err(DeviceError::Place { found: record.device().to_owned(), expected: HOST.to_owned() });
        }
        if dst.len() < self.extent {
            let (found, expected) = (dst.len() as u64, self.extent as u64);
            return Err(DeviceError::Length { what: "the tensor to undo", found, expected });
        }
        for record in self.records.iter().rev() {
            let old = &self.words[record.first_word..record.first_word + record.count];
            match record.placement {
                Placement::Contiguous => dst[record.base..record.base + record.count].copy_from_slice(old),
                // Targets of one record are distinct, so their order among themselves does not matter.
                Placement::Scattered { first_distance } => {
                    let distances = &self.distances[first_distance..first_distance + record.count];
                    for (&distance, &word) in distances.iter().zip(old) {
                        dst[record.base + distance as usize] = word;
                    }
                }
            }
        }
        self.clear();
        Ok(())
    }
}

fn near_distance(base: usize, target: usize) -> u32 {
    u32::try_from(target - base).expect("targets of a record lie within a u32 of its base")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dv2_a_word_written_twice_gets_its_first_old_value_back() {
        let mut dst = [1, 2, 3, 4];
        let mut log = UndoLog::new();
        log.record_run(1, &dst[1..3]);
        dst[1..3].copy_from_slice(&[7, 8]);
        log.record_scattered(&dst, &[0, 2]);
        dst[0] = 9;
        dst[2] = 9;
        assert_eq!(log.words(), 4);
        log.restore(&mut dst).expect("the tensor is the one that was written");
        assert_eq!(dst, [1, 2, 3, 4]);
        assert!(log.is_empty());
        assert_eq!(log.bytes(), 0);
    }

    #[test]
    fn dv2_a_shorter_tensor_is_refused_untouched() {
        let mut log = UndoLog::new();
        log.record_run(2, &[5, 6]);
        let mut dst = [0; 3];
        assert!(log.restore(&mut dst).is_err());
        assert_eq!(dst, [0; 3]);
        assert!(!log.is_empty());
    }
}
