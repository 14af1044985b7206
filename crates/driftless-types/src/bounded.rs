//! Conversions between the `u64` of plans and the `usize` of memory, in one place.

/// An index of this process's memory as the `u64` that plans use.
#[must_use]
pub const fn element_offset(index: usize) -> u64 {
    index as u64
}

/// A plan's `u64` as an index into this process's memory.
///
/// Plans are checked at join to fit the address space, so this only fails on a plan that was never checked.
///
/// # Panics
/// If the value does not fit a `usize`: a broken invariant of ours, never bad input.
#[must_use]
pub fn index_of(offset: u64) -> usize {
    usize::try_from(offset).expect("plan offsets fit the address space")
}
