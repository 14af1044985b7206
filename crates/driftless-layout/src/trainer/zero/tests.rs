//! The buffer layout against a restatement that walks over the buffer position by position.

use super::*;
use proptest::prelude::*;

/// The owner of every element of every parameter, by counting positions one at a time.
fn owners_by_walking(params: &[BufferParam], group: u64, bucket_elements: u64) -> Vec<Vec<u64>> {
    let unit = (1..).find(|unit| unit % group == 0 && unit % 128 == 0).unwrap();
    let mut position = 0u64;
    let mut bucket_first = 0;
    // Per parameter and element: (position, bucket); per bucket: (first position, end).
    let mut places = vec![Vec::new(); params.len()];
    let mut buckets = Vec::new();
    let mut is_empty = true;
    for index in (0..params.len()).rev() {
        let mut close = |position: &mut u64, bucket_first: &mut u64| {
            while !position.is_multiple_of(unit) {
                *position += 1;
            }
            buckets.push((*bucket_first, *position));
            *bucket_first = *position;
        };
        while !position.is_multiple_of(64) {
            position += 1;
        }
        if params[index].is_shared && !is_empty {
            close(&mut position, &mut bucket_first);
        }
        for _ in 0..params[index].elements {
            places[index].push(position);
            position += 1;
        }
        is_empty = params[index].is_shared || position - bucket_first >= bucket_elements;
        if is_empty {
            close(&mut position, &mut bucket_first);
        }
    }
    if !is_empty {
        while !position.is_multiple_of(unit) {
            position += 1;
        }
        buckets.push((bucket_first, position));
    }
    let owner = |position: u64| {
        let (first, end) = buckets.iter().find(|(_, end)| position < *end).unwrap();
        (position - first) / ((end - first) / group)
    };
    places.into_iter().map(|positions| positions.into_iter().map(owner).collect()).collect()
}

fn owners_by_ranges(params: &[BufferParam], group: u64, bucket_elements: u64) -> Vec<Vec<u64>> {
    let buffer = Buffer::new(params, group, bucket_elements);
    let owners_of = |(index, param): (usize, &BufferParam)| {
        let mut owners = vec![u64::MAX; usize::try_from(param.elements).unwrap()];
        for rank in 0..group {
            for element in buffer.owned(index, rank) {
                let owner = &mut owners[usize::try_from(element).unwrap()];
                assert_eq!(*owner, u64::MAX, "element {element} of parameter {index} has two owners");
                *owner = rank;
            }
        }
        owners
    };
    params.iter().enumerate().map(owners_of).collect()
}

fn dense(elements: u64) -> BufferParam {
    BufferParam { elements, is_shared: false }
}

proptest! {
    #[test]
    fn ly1_ranges_are_those_of_the_walk(
        sizes in prop::collection::vec((1u64..3000, prop::bool::weighted(0.15)), 1..12),
        group in prop::sample::select(vec![1u64, 2, 3, 4, 6, 8, 16]),
        bucket_elements in prop::sample::select(vec![1u64, 1000, 4000, u64::MAX]),
    ) {
        let params: Vec<_> =
            sizes.into_iter().map(|(elements, is_shared)| BufferParam { elements, is_shared }).collect();
        let walked = owners_by_walking(&params, group, bucket_elements);
        prop_assert_eq!(owners_by_ranges(&params, group, bucket_elements), walked);
    }
}

#[test]
fn the_last_registered_parameter_comes_first_and_starts_are_aligned() {
    // Reverse order: 100 elements at 0, 300 at 128, end 428, padded to 512: two ranks of 256 each.
    let buffer = Buffer::new(&[dense(300), dense(100)], 2, u64::MAX);
    assert_eq!((buffer.owned(1, 0), buffer.owned(1, 1)), (0..100, 100..100));
    assert_eq!((buffer.owned(0, 0), buffer.owned(0, 1)), (0..128, 128..300));
}

#[test]
fn buckets_of_three_ranks_are_padded_to_384() {
    let buffer = Buffer::new(&[dense(10), dense(400)], 3, 400);
    assert_eq!(buffer.buckets, [0..768, 768..1152]);
    assert_eq!(buffer.owned(1, 1), 256..400);
    assert_eq!(buffer.owned(0, 0), 0..10);
    assert_eq!(buffer.owned(0, 2), 10..10);
}

#[test]
fn a_shared_embedding_has_a_bucket_of_its_own() {
    let shared = BufferParam { elements: 50, is_shared: true };
    let buffer = Buffer::new(&[dense(10), shared, dense(20)], 1, u64::MAX);
    assert_eq!(buffer.buckets, [0..128, 128..256, 256..384]);
}

#[test]
fn buckets_close_at_forty_million_or_a_million_per_rank() {
    assert_eq!(default_bucket_elements(1), 40_000_000);
    assert_eq!(default_bucket_elements(40), 40_000_000);
    assert_eq!(default_bucket_elements(64), 64_000_000);
}
