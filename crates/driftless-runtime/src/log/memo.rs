//! The text of a reader's state: JSON, with the four numbers that people look for first.

use driftless_proto::log::{Chain, Cursor, Dirty, Fall, Highest, Memory, Published};
use driftless_types::{Epoch, Hex, ObjectDigest, RunId, Seq, StreamId, Version};
use serde::{Deserialize, Serialize};

const FORMAT: u32 = 1;
/// What a log can state; beyond it places could not even be counted on.
const NUMBER_MAX: u64 = (1 << 53) - 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: u32,
    /// For people: what the weights are. The cursor below is what counts.
    serving: Option<Serving>,
    cursor: Option<CursorText>,
    dirty: Option<Place>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Serving {
    run: String,
    epoch: u64,
    version: u64,
    seq: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorText {
    run: String,
    stream: String,
    at: Place,
    epoch: EpochText,
    last: Option<PublishedText>,
    fall: FallText,
    held: Option<PublishedText>,
    highest: HighestText,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    seq: u64,
    object: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EpochText {
    counter: u64,
    incarnation: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedText {
    at: Place,
    version: u64,
    epoch: EpochText,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HighestText {
    at: Place,
    epoch: EpochText,
    version: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FallText {
    Refused,
    AfterEpoch,
    Below(u64),
}

/// The text of a state.
pub(super) fn text(memory: &Memory) -> Vec<u8> {
    let serving = memory.cursor.and_then(|cursor| cursor.held.map(|held| serving(&cursor, &held)));
    let text = Text {
        format: FORMAT,
        serving: serving.filter(|_| memory.dirty.is_none()),
        cursor: memory.cursor.as_ref().map(cursor_text),
        dirty: memory.dirty.map(|dirty| place(dirty.seq, dirty.object)),
    };
    let mut json = serde_json::to_vec_pretty(&text).expect("numbers and text are JSON");
    json.push(b'\n');
    json
}

/// The state in a text.
pub(super) fn parse(text: &[u8]) -> Result<Memory, String> {
    let text: Text = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if text.format != FORMAT {
        return Err(format!("it has format {}, expected {FORMAT}", text.format));
    }
    let cursor = text.cursor.as_ref().map(cursor).transpose()?;
    let dirty = text.dirty.as_ref().map(|at| Ok::<_, String>(Dirty { seq: seq(at)?, object: object(at)? }));
    Ok(Memory { cursor, dirty: dirty.transpose()? })
}

fn serving(cursor: &Cursor, held: &Published) -> Serving {
    Serving {
        run: cursor.run.to_string(),
        epoch: held.epoch.counter,
        version: held.version.0,
        seq: held.seq.0,
    }
}

fn cursor_text(cursor: &Cursor) -> CursorText {
    let Cursor { run, chain, held, highest } = cursor;
    CursorText {
        run: run.to_string(),
        stream: chain.stream.to_string(),
        at: place(chain.seq, chain.object),
        epoch: epoch_text(chain.epoch),
        last: chain.last.as_ref().map(published_text),
        fall: match chain.fall {
            Fall::Refused => FallText::Refused,
            Fall::AfterEpoch => FallText::AfterEpoch,
            Fall::Below(version) => FallText::Below(version.0),
        },
        held: held.as_ref().map(published_text),
        highest: HighestText {
            at: place(highest.seq, highest.object),
            epoch: epoch_text(highest.epoch),
            version: highest.version.map(|version| version.0),
        },
    }
}

fn cursor(text: &CursorText) -> Result<Cursor, String> {
    let chain = Chain {
        stream: StreamId(bytes(&text.stream)?),
        seq: seq(&text.at)?,
        object: object(&text.at)?,
        epoch: epoch(&text.epoch)?,
        last: text.last.as_ref().map(published).transpose()?,
        fall: match text.fall {
            FallText::Refused => Fall::Refused,
            FallText::AfterEpoch => Fall::AfterEpoch,
            FallText::Below(below) => Fall::Below(version(below)?),
        },
    };
    let highest = Highest {
        epoch: epoch(&text.highest.epoch)?,
        seq: seq(&text.highest.at)?,
        object: object(&text.highest.at)?,
        version: text.highest.version.map(version).transpose()?,
    };
    let held = text.held.as_ref().map(published).transpose()?;
    Ok(Cursor { run: RunId(bytes(&text.run)?), chain, held, highest })
}

fn published_text(published: &Published) -> PublishedText {
    PublishedText {
        at: place(published.seq, published.object),
        version: published.version.0,
        epoch: epoch_text(published.epoch),
    }
}

fn published(text: &PublishedText) -> Result<Published, String> {
    let (seq, version) = (seq(&text.at)?, version(text.version)?);
    Ok(Published { seq, version, epoch: epoch(&text.epoch)?, object: object(&text.at)? })
}

fn place(seq: Seq, object: ObjectDigest) -> Place {
    Place { seq: seq.0, object: object.to_string() }
}

fn number(found: u64) -> Result<u64, String> {
    if found > NUMBER_MAX {
        return Err(format!("found {found}, expected at most {NUMBER_MAX}"));
    }
    Ok(found)
}

fn seq(place: &Place) -> Result<Seq, String> {
    number(place.seq).map(Seq)
}

fn version(found: u64) -> Result<Version, String> {
    number(found).map(Version)
}

fn object(place: &Place) -> Result<ObjectDigest, String> {
    bytes(&place.object).map(ObjectDigest)
}

fn epoch_text(epoch: Epoch) -> EpochText {
    EpochText { counter: epoch.counter, incarnation: Hex(&epoch.incarnation.to_be_bytes()).to_string() }
}

fn epoch(text: &EpochText) -> Result<Epoch, String> {
    Ok(Epoch { counter: number(text.counter)?, incarnation: u64::from_be_bytes(bytes(&text.incarnation)?) })
}

/// Bytes out of lower-case hexadecimal.
fn bytes<const N: usize>(text: &str) -> Result<[u8; N], String> {
    Hex::parse(text).ok_or_else(|| format!("found `{text}`, expected {} hex digits", 2 * N))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let epoch = Epoch { counter: 3, incarnation: 0xfedc_ba98_7654_3210 };
        let object = ObjectDigest([7; 32]);
        let held = Published { seq: Seq(8), version: Version(5), epoch, object };
        let chain = Chain {
            stream: StreamId([1; 16]),
            seq: Seq(9),
            object,
            epoch,
            last: Some(held),
            fall: Fall::Below(Version(4)),
        };
        let highest = Highest { epoch, seq: Seq(9), object, version: Some(Version(6)) };
        let cursor = Cursor { run: RunId([2; 16]), chain, held: Some(held), highest };
        Memory { cursor: Some(cursor), dirty: Some(Dirty { seq: Seq(10), object }) }
    }

    #[test]
    fn a_state_comes_back() {
        for memory in [memory(), Memory { dirty: None, ..memory() }, Memory::default()] {
            assert_eq!(parse(&text(&memory)), Ok(memory));
        }
    }

    #[test]
    fn people_find_what_is_served_and_nothing_while_it_is_overwritten() {
        let clean = text(&Memory { dirty: None, ..memory() });
        let clean: serde_json::Value = serde_json::from_slice(&clean).expect("JSON");
        assert_eq!((&clean["serving"]["version"], &clean["serving"]["seq"]), (&5.into(), &8.into()));
        let dirty: serde_json::Value = serde_json::from_slice(&text(&memory())).expect("JSON");
        assert!(dirty["serving"].is_null());
    }

    #[test]
    fn what_is_no_state_is_refused_in_words() {
        let good = String::from_utf8(text(&memory())).expect("text");
        for bad in [
            "{}".to_owned(),
            good.replace("\"format\": 1", "\"format\": 2"),
            good.replace("\"seq\": 9", "\"seq\": 18446744073709551615"),
            good.replace("fedcba9876543210", "fedcba987654321"),
            good.replace("fedcba9876543210", "+edcba987654321x"),
            good[..good.len() / 2].to_owned(),
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
