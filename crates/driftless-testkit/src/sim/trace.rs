//! The trace of a run: a hash of everything that happened, and its tail.

use super::message::Happening;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

const TAIL: usize = 120;

#[derive(Debug, Default)]
pub(super) struct Trace {
    hasher: DefaultHasher,
    tail: VecDeque<(u64, Entry)>,
    pub(super) events: u64,
}

#[derive(Debug)]
enum Entry {
    Happened(Happening),
    Note(String),
}

impl Trace {
    pub(super) fn happened(&mut self, at_ms: u64, happening: &Happening) {
        (at_ms, happening).hash(&mut self.hasher);
        self.events += 1;
        self.push(at_ms, Entry::Happened(happening.clone()));
    }

    /// Something that is no event of its own, such as a death.
    pub(super) fn note(&mut self, at_ms: u64, note: String) {
        (at_ms, &note).hash(&mut self.hasher);
        self.push(at_ms, Entry::Note(note));
    }

    fn push(&mut self, at_ms: u64, entry: Entry) {
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back((at_ms, entry));
    }

    pub(super) fn digest(&self) -> u64 {
        self.hasher.finish()
    }

    pub(super) fn tail(&self) -> Vec<String> {
        let line = |(at_ms, entry): &(u64, Entry)| match entry {
            Entry::Happened(happening) => format!("{at_ms:>7} ms  {happening}"),
            Entry::Note(note) => format!("{at_ms:>7} ms  {note}"),
        };
        self.tail.iter().map(line).collect()
    }
}
