//! The design that was not taken: one object per version, and a head that whoever publishes overwrites.

use stateright::{Model, Property};
use std::collections::BTreeMap;

/// Two trainers: one goes on from version 1, the other was restarted from there and has other bits.
#[derive(Clone, Debug)]
pub(crate) struct Heads;

const WRITERS: usize = 2;
const LAST: u8 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct At {
    /// By version: whose it is.
    objects: BTreeMap<u8, usize>,
    head: u8,
    /// The version that each writer has put, and the one that it has made the head.
    put: [u8; WRITERS],
    headed: [u8; WRITERS],
    /// What the reader has applied: whose, version by version.
    applied: Vec<usize>,
    heads_seen: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Put(usize),
    Head(usize),
    Read,
}

impl Model for Heads {
    type State = At;
    type Action = Step;

    fn init_states(&self) -> Vec<At> {
        let objects = BTreeMap::from([(1, 0)]);
        let (put, headed) = ([1; WRITERS], [1; WRITERS]);
        vec![At { objects, head: 1, put, headed, applied: vec![0], heads_seen: vec![1] }]
    }

    fn actions(&self, at: &At, steps: &mut Vec<Step>) {
        for writer in 0..WRITERS {
            if at.put[writer] > at.headed[writer] {
                steps.push(Step::Head(writer));
            } else if at.put[writer] < LAST {
                steps.push(Step::Put(writer));
            }
        }
        steps.push(Step::Read);
    }

    fn next_state(&self, before: &At, step: Step) -> Option<At> {
        let mut at = before.clone();
        match step {
            Step::Put(writer) => {
                at.put[writer] += 1;
                at.objects.insert(at.put[writer], writer);
            }
            Step::Head(writer) => {
                at.headed[writer] = at.put[writer];
                at.head = at.put[writer];
            }
            Step::Read => {
                let served = u8::try_from(at.applied.len()).expect("small");
                if at.heads_seen.last() == Some(&at.head) && at.head <= served {
                    return None;
                }
                at.heads_seen = vec![*at.heads_seen.last()?, at.head];
                for version in served + 1..=at.head {
                    at.applied.push(*at.objects.get(&version)?);
                }
            }
        }
        Some(at)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // From version 2 on all that a reader has applied is of one trainer.
            Property::always("one history", |_, at: &At| {
                at.applied[1..].windows(2).all(|pair| pair[0] == pair[1])
            }),
            Property::always("versions rise", |_, at: &At| {
                at.heads_seen.windows(2).all(|pair| pair[0] <= pair[1])
            }),
        ]
    }
}
