//! Unusual keys and values, size limits.
use super::*;

// Guarantee: store 7.
/// A value may be any bytes, empty, or a mebibyte long.
pub async fn any_bytes_are_values(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![7; (1 << 20).min(store.capabilities().max_value())];
    for value in [all, Vec::new(), large] {
        ok(store.put(key, Bytes::from(value.clone()), PutOptions::new()).await);
        let read = ok(fixture.other().get(key).await).unwrap_or_else(|| panic!("it is there"));
        assert!(read.value == value);
    }
}

// Guarantee: store 7.
/// A key is stored unchanged, or refused before it is sent; it never becomes another key.
pub async fn hostile_keys_come_back_or_are_refused(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let long = "x".repeat(1024);
    let keys = [
        "a/b",
        "a",
        "/",
        "%",
        "%2F",
        "..",
        ".",
        " ",
        "\t\n",
        "\u{0}",
        "a\u{0}b",
        "'",
        "\"; DROP TABLE records; --",
        "*",
        "a:b",
        "{}",
        "日本",
        "\u{10ffff}",
        "\u{feff}",
        "A",
        &long,
    ];
    let mut kept = BTreeSet::new();
    for key in keys {
        for key in [Key::new("p", key), Key::new(key, "r")] {
            match store.insert(key, key.to_string()).await {
                Ok(_) => assert!(kept.insert(key), "{key} is another key's"),
                refused => assert!(is_invalid(refused), "{key}"),
            }
        }
    }
    for key in &kept {
        assert_eq!(value(fixture.other(), *key).await, Some(key.to_string()));
    }
    let in_p: BTreeSet<&str> = kept.iter().filter(|key| key.partition == "p").map(|key| key.row).collect();
    assert_eq!(rows(store, Scan::partition("p")).await, in_p.into_iter().collect::<Vec<_>>());
    for key in [Key::new("", "r"), Key::new("p", "")] {
        let field = if key.row.is_empty() { "row" } else { "partition" };
        refused(store.get(key).await, field);
        refused(store.put(key, "x".into(), PutOptions::new()).await, field);
        refused(store.delete(key, DeleteOptions::new()).await, field);
    }
    refused(store.scan(&Scan::partition("")).await, "partition");
}

// Guarantee: store 7.
/// Different keys are different records, however an engine joins and stores their parts:
/// separators, case, spaces at the end, composed characters.
pub async fn keys_that_look_alike_are_apart(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let mut keys: Vec<(String, String)> = Vec::new();
    for separator in [":", "/", "|", ".", "-", "_", " ", "\u{0}", "\u{1}", "\u{1f}", "{}", "%2F"] {
        keys.push((format!("a{separator}b"), "c".to_owned()));
        keys.push(("a".to_owned(), format!("b{separator}c")));
    }
    for row in ["é", "e\u{301}", "E", "e", "e ", " e", "ß", "ss", "1", "01", "1.0", "ﬀ", "ff"] {
        keys.push(("alike".to_owned(), row.to_owned()));
    }
    let mut kept = Vec::new();
    for (partition, row) in &keys {
        let key = Key::new(partition, row);
        match store.insert(key, key.to_string()).await {
            Ok(_) => kept.push(key),
            refused => assert!(is_invalid(refused), "{key}"),
        }
    }
    for key in kept {
        assert_eq!(value(fixture.other(), key).await, Some(key.to_string()));
    }
}

// Guarantee: store 7.
/// A key and a value of the largest stated size are accepted; the size of a key is counted in
/// bytes.
pub async fn the_largest_stated_sizes_are_accepted(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if can.max_key() < 1 << 20 {
        let longest = noise(can.max_key());
        for key in [Key::new("p", &longest), Key::new(&longest, "r"), Key::new(&longest, &longest)] {
            ok(store.insert(key, "x").await);
            assert_eq!(value(fixture.other(), key).await.as_deref(), Some("x"));
        }
        assert_eq!(rows(store, Scan::partition("p")).await, [&*longest]);
        let longer = "é".repeat(can.max_key() / 2 + 1);
        refused(store.insert(Key::new("p", &longer), "x").await, "row");
    }
    if can.max_value() <= 1 << 20 {
        let largest = Bytes::from(vec![7; can.max_value()]);
        ok(store.put(Key::new("p", "r"), largest.clone(), PutOptions::new()).await);
        assert!(ok(fixture.other().get(Key::new("p", "r")).await).is_some_and(|record| record.value == largest));
    }
}

// Guarantee: store 7.
/// Values and keys above the stated sizes are refused before they are sent, with the name of the
/// argument.
pub async fn oversized_requests_are_refused(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if can.max_key() < 1 << 20 {
        let long = "x".repeat(can.max_key() + 1);
        for (key, field) in [(Key::new("p", &long), "row"), (Key::new(&long, "r"), "partition")] {
            refused(store.put(key, "x".into(), PutOptions::new()).await, field);
            refused(store.get(key).await, field);
            refused(store.delete(key, DeleteOptions::new()).await, field);
        }
        refused(store.scan(&Scan::partition(&*long)).await, "partition");
    }
    if can.max_value() < 1 << 30 {
        let large = Bytes::from(vec![0; can.max_value() + 1]);
        refused(store.put(Key::new("p", "r"), large.clone(), PutOptions::new()).await, "value");
        if can.has(Capability::AtomicBatch) {
            let writes = vec![Write::put("small", "x", Precondition::Any), Write::put("r", large, Precondition::Any)];
            refused(store.batch("p", writes).await, "value");
        }
    }
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
}
