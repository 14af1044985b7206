//! What a fuzzer calls: any bytes, and nothing but errors and true statements may come of them.
//!
//! A `cargo fuzz` crate takes this file by `#[path]` and calls one function per target.

use bytes::Bytes;
use driftless_codec::entry::{
    SecretKey, SignedEntry, Signer, Trust, TrustedKeys, decode_parameters, decode_writers, encode_parameters,
    encode_writers,
};
use driftless_codec::{BaseWords, CanonicalBox, FragmentRecord, LogSection, LogView, Section};
use driftless_types::{ChangeSet, Seq};

/// Sections within a cluster.
pub(crate) fn fuzz_section(data: &[u8]) {
    let mut bytes = Bytes::copy_from_slice(data);
    while let Ok(section) = Section::parse_any(&mut bytes) {
        let header = section.header();
        match section.changes() {
            ChangeSet::All(words) => assert_eq!(words.len() as u64, header.n * header.dtype.words() as u64),
            ChangeSet::Sparse { positions, values } => {
                assert_eq!(positions.len(), values.len());
                assert_rises(&positions, header.nnz, header.n);
            }
        }
    }
}

/// Blobs of a log.
pub(crate) fn fuzz_log_section(data: &[u8]) {
    let mut bytes = Bytes::copy_from_slice(data);
    while let Ok(section) = LogSection::parse_any(&mut bytes) {
        let header = section.header();
        assert_eq!(section.area().volume(), header.n);
        let LogView::Sparse(blocks) = section.view() else { continue };
        for words in [BaseWords::Exact, BaseWords::Mixed] {
            for word in [0, 0x3c00, 0xffff] {
                if let Ok((positions, values)) = blocks.decode_all(words, &|_| word) {
                    assert_eq!(positions.len(), values.len());
                    assert_rises(&positions, header.nnz, header.n);
                }
            }
        }
    }
}

/// Objects of a log, behind their signature: what somebody who has the key might write.
pub(crate) fn fuzz_entry(data: &[u8]) {
    let unsigned = [data, b"\nunsigned\n"].concat();
    for object in [data, &unsigned] {
        for seq in [Seq(0), Seq(5)] {
            let Ok(signed) = SignedEntry::verify(object, &Trust::AllowUnsigned, seq) else { continue };
            let sealed =
                SignedEntry::seal(&signed.entry, &Signer::Unsigned).expect("what is read is written");
            let body = sealed.strip_suffix(b"\nunsigned\n").expect("unsigned");
            assert!(object.starts_with(body), "an entry has one spelling");
        }
    }
}

/// Blobs of JSON, and files of keys.
pub(crate) fn fuzz_tables(data: &[u8]) {
    for count in 0..3 {
        if let Ok(writers) = decode_writers(data, count) {
            assert_eq!(encode_writers(&writers).as_deref(), Ok(data));
        }
    }
    if let Ok(parameters) = decode_parameters(data) {
        assert_eq!(encode_parameters(&parameters).as_deref(), Ok(data));
        let whole = parameters.iter().map(|parameter| CanonicalBox::whole(parameter.shape.extents()));
        assert!(whole.filter_map(Result::ok).all(|area| area.volume() > 0));
    }
    let text = String::from_utf8_lossy(data);
    if let Ok(keys) = TrustedKeys::parse_file(&text) {
        assert_eq!(TrustedKeys::parse_file(&keys.print_file()), Ok(keys));
    }
    if let Ok(key) = SecretKey::parse_file(&text) {
        assert_eq!(key.print_file().trim_end(), text.trim_end());
    }
}

/// Record vectors.
pub(crate) fn fuzz_records(data: &[u8]) {
    if let Ok(records) = FragmentRecord::decode_all(data, data.len() / 32) {
        let again: Vec<u8> = records.iter().flat_map(FragmentRecord::encode).collect();
        assert_eq!(again, data);
    }
}

fn assert_rises(positions: &[u32], nnz: u64, n: u64) {
    assert_eq!(positions.len() as u64, nnz);
    assert!(positions.is_sorted_by(|a, b| a < b));
    assert!(positions.last().is_none_or(|&last| u64::from(last) < n));
}
