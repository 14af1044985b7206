//! The bytes that FORMAT.md shows.

use crate::kit::{Changed, decode, parse};
use driftless_codec::BaseWords;

const FORMAT: &str = include_str!("../../FORMAT.md");

/// The bytes of the listing of FORMAT.md under this title: digits in front of the first two spaces of each line.
fn listing() -> Vec<u8> {
    let (_, rest) = FORMAT.split_once("```text\n44 46 53 31").expect("the listing is there");
    let (rest, _) = rest.split_once("```").expect("the listing ends");
    let lines = format!("44 46 53 31{rest}");
    let digits = lines.lines().flat_map(|line| line.split("  ").next().unwrap_or(line).split(' '));
    digits.filter(|pair| !pair.is_empty()).map(|pair| u8::from_str_radix(pair, 16).expect("a byte")).collect()
}

/// 24 changes of 1,024 elements, from 0x3c00 on: 21 by one, up and down in turn, two by more, one of sign.
fn changed() -> Changed {
    let new = |i: u32| match i {
        3 => 0x3c04,
        10 => 0x3bf6,
        17 => 0xbc00,
        _ if i.is_multiple_of(2) => 0x3c01,
        _ => 0x3bff,
    };
    Changed::of((0..24).map(|i| (40 * i + i % 3, 0x3c00, new(i))))
}

#[test]
fn the_section_of_the_page_is_these_bytes() {
    let bytes = changed().congruence(1024);
    for chunk in bytes.chunks(16) {
        println!("{}", chunk.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "));
    }
    assert_eq!(listing(), bytes);
    let section = parse(1024, &bytes).unwrap();
    let (positions, values) =
        decode(&section, BaseWords::Exact, &|position| changed().base(position)).unwrap();
    assert_eq!((positions, values), (changed().positions, changed().new));
}
