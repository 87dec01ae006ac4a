//! Settings as TOML: one line for each, and the documents that an operator makes of them.
use serde_json::Value;

/// Returns the names of all settings with their values, in the order of the names. A part of a name
/// that is no plain word is in quotes.
pub(super) fn leaves(value: &Value) -> Vec<(String, &Value)> {
    fn collect<'a>(path: &str, value: &'a Value, leaves: &mut Vec<(String, &'a Value)>) {
        match value {
            Value::Object(fields) if !fields.is_empty() || path.is_empty() => {
                for (name, value) in fields {
                    let name = key(name);
                    let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                    collect(&path, value, leaves);
                }
            }
            value => leaves.push((path.to_owned(), value)),
        }
    }
    let mut leaves = Vec::new();
    collect("", value, &mut leaves);
    leaves
}

/// Writes settings, one a line. Those that are none are left out: TOML has no word for them.
pub(super) fn write(settings: &Value) -> String {
    let some = leaves(settings).into_iter().filter(|(_, value)| !value.is_null());
    some.map(|(name, value)| format!("{name} = {}\n", inline(value))).collect()
}

/// Returns a value as TOML in one line.
pub(super) fn inline(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "none".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", list(items.iter().map(inline).collect())),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let some = fields.iter().filter(|(_, value)| !value.is_null());
            format!("{{ {} }}", list(some.map(|(name, value)| format!("{} = {}", key(name), inline(value))).collect()))
        }
    }
}

/// Returns text in quotes. A character that a page shows as another one is written by its number.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in Value::from(text).to_string().chars() {
        match super::markup::is_shown(c) {
            true => quoted.push(c),
            false => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    quoted
}

fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn key(name: &str) -> String {
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { quoted(name) }
}

/// Reads a document. The error names the line.
pub(super) fn read(text: &str) -> Result<Value, String> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("line {}: {}", 1 + before.matches('\n').count(), error.message())
    })
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written_but_for_those_that_are_none() {
        let settings = json!({
            "batch": 5, "ratio": 0.2, "is_on": true, "name": "a \"b\"\\\n\u{202e}\u{e9}", "none": null,
            "kinds": ["timeout", "connect"], "limits": { "a b": { "soft": 0.5, "none": null } },
            "tiers": [{ "permits": 7, "per": "1s" }, { "permits": 9, "per": "1m" }], "empty": {},
        });
        let text = write(&settings);
        assert!(!text.contains('\u{202e}') && !text.contains("none"), "{text}");
        let mut expected = settings.clone();
        expected.as_object_mut().unwrap().remove("none");
        expected["limits"]["a b"].as_object_mut().unwrap().remove("none");
        assert_eq!(read(&text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_document_is_refused_with_its_line() {
        for (text, line) in
            [("a = 1\nb = 30s", 2), ("a = 1\na = 2", 2), ("\n\na = \"x", 3), ("a = 1 b = 2", 1), ("a 1", 1)]
        {
            let why = read(text).unwrap_err();
            assert!(why.starts_with(&format!("line {line}: ")), "{text}: {why}");
        }
        // Text from outside fills no stack.
        assert!(read(&format!("a = {}", "[".repeat(100_000))).is_err());
        assert!(read(&format!("{} = 1", vec!["a"; 100_000].join("."))).is_err());
    }
}
