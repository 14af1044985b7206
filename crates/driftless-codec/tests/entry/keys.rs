//! Key files and trust files.

use crate::kit::key;
use driftless_codec::entry::{PublicKey, Role, SecretKey, TrustedKeys};

#[test]
fn key_files_come_back() {
    let text = key(1).print_file();
    assert_eq!(text, format!("driftless key 1\n{}\n", "01".repeat(32)));
    assert_eq!(SecretKey::parse_file(&text).unwrap().public(), key(1).public());
}

#[test]
fn bad_key_files_name_the_line_and_not_what_it_holds() {
    let seed = "01".repeat(32);
    for (text, line) in [
        (String::new(), 1),
        (format!("{seed}\n"), 1),
        ("driftless key 1\n".to_owned(), 2),
        (format!("driftless key 1\n{seed}0\n"), 2),
        (format!("driftless key 1\n{}\n", "0A".repeat(32)), 2),
        (format!("driftless key 1\n{seed}\nmore\n"), 3),
    ] {
        let error = SecretKey::parse_file(&text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("line {line} of the key file is not one: expected ")), "{error}");
        assert!(!error.contains(&seed[..8]));
    }
}

#[test]
fn secrets_are_not_printed() {
    let text = format!("{:?}", key(0xab));
    assert!(text.contains(&format!("{:?}", key(0xab).public().id())) && !text.contains("abab"), "{text}");
}

#[test]
fn trust_files_come_back() {
    let mut keys = TrustedKeys::new(key(1).public(), Role::Publisher);
    keys.trust(key(2).public(), Role::Archivist);
    let text = keys.print_file();
    assert_eq!(text.lines().count(), 3);
    assert_eq!(TrustedKeys::parse_file(&text), Ok(keys.clone()));
    let commented = text.replace('\n', "\n# a comment\n\n");
    assert_eq!(TrustedKeys::parse_file(&commented), Ok(keys.clone()));
    assert_eq!(keys.find(key(2).public().id()), Some((key(2).public(), Role::Archivist)));
    assert_eq!(keys.find(key(3).public().id()), None);
}

#[test]
fn bad_trust_files_name_the_line() {
    let good = TrustedKeys::new(key(1).public(), Role::Publisher).print_file();
    let line = good.lines().nth(1).unwrap();
    let other = key(2).public().id().to_string();
    let with = |line: &str| format!("driftless trust 1\n{line}\n");
    for (text, number) in [
        (String::new(), 1),
        (line.to_owned(), 1),
        ("driftless trust 1\n# nobody\n".to_owned(), 3),
        (with(&line.replace("publisher", "owner")), 2),
        (with(&format!("{line} more")), 2),
        (with(&line.replace(&key(1).public().id().to_string(), &other)), 2),
        (with(&line[..line.len() - 1]), 2),
        (format!("{good}{line}\n"), 3),
    ] {
        let error = TrustedKeys::parse_file(&text).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("line {number} of the trust file is not one: ")),
            "{text}: {error}"
        );
    }
}

#[test]
fn weak_keys_are_none() {
    // The identity, the point of order two, and no point at all.
    let mut identity = [0; 32];
    identity[0] = 1;
    assert_eq!(PublicKey::from_bytes(&identity), None);
    let mut order_two = [0xff; 32];
    (order_two[0], order_two[31]) = (0xec, 0x7f);
    assert_eq!(PublicKey::from_bytes(&order_two), None);
    let mut none = [0; 32];
    none[0] = 2;
    assert_eq!(PublicKey::from_bytes(&none), None);
    assert_eq!(PublicKey::from_bytes(&key(1).public().to_bytes()), Some(key(1).public()));
}
