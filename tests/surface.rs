//! The public surface, as far as sources show it: types that may grow are `#[non_exhaustive]`, each setting has a
//! setter, and each component is reconfigured in the same way.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod sources;

use std::collections::BTreeSet;

use sources::texts;

/// Public types without `#[non_exhaustive]`, each with its reason. A new type belongs here only if no variant and no
/// field can ever come.
const CLOSED: &[(&str, &str)] = &[
    ("Access", "a request reads or writes"),
    ("Acquired", "a lease is granted, or another holder has it"),
    ("Answer", "an implementation detail of `call`"),
    ("Answering", "a marker: the wrapped classifier or service is its only field"),
    ("AnyError", "a marker without fields"),
    ("Boxing", "a marker without fields"),
    ("ByCallError", "a marker without fields"),
    ("ByClone", "a marker without fields"),
    ("ByFailure", "a marker without fields"),
    ("ByGrpc", "a marker without fields"),
    ("Chunk", "a mover must move every kind of chunk"),
    ("ErrIsFailure", "a marker without fields"),
    ("Flat", "a marker without fields"),
    ("Identity", "a marker without fields"),
    ("Jump", "a router of one number"),
    ("Leader", "a node knows of no leader, of itself, or of another one"),
    ("NodeId", "a number"),
    ("Notice", "after anything that is no message, a subscriber reads the whole state"),
    ("Once", "a marker without fields"),
    ("Order", "an order has two directions"),
    ("Priority", "shares and shedding are set level by level"),
    ("Served", "a call was made, or it is in the journal"),
    ("RecorderHandle", "parts of a builder, which users cannot name"),
    ("ShardId", "a number"),
    ("State", "a user shows or counts each state"),
    ("WithAttempt", "an implementation detail of `call`"),
];

/// Types with settings that have no setters, each with its reason.
const WITHOUT_SETTERS: &[&str] = &[];

/// A public type as its source shows it.
#[derive(Debug, Default, PartialEq)]
struct Type {
    name: String,
    is_enum: bool,
    /// Attributes, one after the other.
    attributes: String,
    /// Fields with their types; a private field has no name.
    fields: Vec<(String, String)>,
}

impl Type {
    /// Returns `true` if code outside the crate can build it or match all of it.
    fn is_open(&self) -> bool {
        let all_public = self.fields.iter().all(|(name, _)| !name.is_empty());
        !self.attributes.contains("#[non_exhaustive]") && (self.is_enum || all_public)
    }
}

/// The public enums and structs of a file, without its tests.
fn types(text: &str) -> Vec<Type> {
    let (mut types, mut attributes) = (Vec::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim_end();
        if line.starts_with("#[") || !attributes.is_empty() && (line.starts_with(' ') || line.starts_with(")]")) {
            attributes += line;
            continue;
        }
        let found = ["pub enum ", "pub struct "].iter().find_map(|kind| Some((*kind, line.strip_prefix(kind)?)));
        if let Some((kind, rest)) = found {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            let mut it = Type { name, is_enum: kind == "pub enum ", attributes: attributes.clone(), fields: vec![] };
            if let Some((_, tuple)) = rest.split_once('(').filter(|_| line.ends_with(';')) {
                let tuple = tuple.trim_end_matches(");");
                it.fields = vec![match tuple.strip_prefix("pub ") {
                    Some(inner) => ("0".to_owned(), inner.to_owned()),
                    None => (String::new(), tuple.to_owned()),
                }];
            } else if !it.is_enum && !line.ends_with(';') && !line.ends_with('}') {
                let body = lines.by_ref().take_while(|line| *line != "}");
                for field in body.filter_map(|line| line.strip_prefix("    ")?.strip_suffix(',')) {
                    if let Some((name, kind)) = field.strip_prefix("pub ").and_then(|field| field.split_once(": ")) {
                        it.fields.push((name.to_owned(), kind.to_owned()));
                    } else if !field.starts_with(['/', '#', ' ']) && field.contains(": ") {
                        it.fields.push((String::new(), field.to_owned()));
                    }
                }
            }
            types.push(it);
        }
        if !line.starts_with("//") {
            attributes.clear();
        }
    }
    types
}

#[test]
fn a_public_type_is_non_exhaustive_or_has_a_reason() {
    let mut open = BTreeSet::new();
    for (_, text) in texts() {
        open.extend(types(&text).into_iter().filter(Type::is_open).map(|it| it.name));
    }
    let closed: BTreeSet<String> = CLOSED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let new: Vec<_> = open.difference(&closed).collect();
    assert!(new.is_empty(), "add #[non_exhaustive], or a reason in the list above: {new:?}");
    let gone: Vec<_> = closed.difference(&open).collect();
    assert!(gone.is_empty(), "remove from the list above: {gone:?}");
}

/// The lists of setters of a file: the type, and the names of its fields.
fn setters(text: &str) -> Vec<(String, Vec<String>)> {
    let lists = text.split("setters! {\n    impl ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(" {\n")?;
        let fields = rest.split("\n    }\n").next()?.lines();
        Some((name.to_owned(), fields.filter_map(|line| Some(line.trim().split_once(": ")?.0.to_owned())).collect()))
    });
    lists.collect()
}

/// A configuration: a document may contain it, or its name says so. What is stored or sent is none.
fn is_configuration(it: &Type) -> bool {
    let named = ["Config", "Options", "Quota", "Limits", "PriorityShares", "Level"];
    named.iter().any(|end| it.name.ends_with(end)) && !it.is_enum && it.fields.iter().all(|(name, _)| !name.is_empty())
}

#[test]
fn each_setting_has_a_setter_of_its_name() {
    let mut configurations = 0;
    for (path, text) in texts() {
        let setters = setters(&text);
        for it in types(&text).into_iter().filter(|it| is_configuration(it) && !it.fields.is_empty()) {
            if WITHOUT_SETTERS.contains(&it.name.as_str()) {
                continue;
            }
            configurations += 1;
            let fields: Vec<_> = it.fields.into_iter().map(|(name, _)| name).collect();
            let listed = setters.iter().find(|(name, _)| *name == it.name);
            assert_eq!(listed.map(|(_, listed)| listed), Some(&fields), "the setters of {} in {path}", it.name);
        }
    }
    assert!(configurations >= 40, "only {configurations} configurations were found");
}

#[test]
fn every_component_is_reconfigured_in_the_same_way() {
    let mut components = 0;
    for (path, text) in texts() {
        for (i, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with("    pub fn reconfigure")) {
            components += 1;
            let arguments = line.split_once("(&self, ").unwrap_or_else(|| panic!("{path}:{}", i + 1)).1;
            let (argument, result) = arguments.split_once(") -> ").unwrap_or_else(|| panic!("{path}:{}", i + 1));
            assert_eq!(argument.matches(": ").count(), 1, "one configuration: {path}:{}", i + 1);
            assert_eq!(result, "Result<(), ConfigError> {", "{path}:{}", i + 1);
        }
    }
    assert!(components >= 15, "only {components} components were found");
}

#[test]
fn the_reader_of_sources_finds_what_it_is_for() {
    let text = "/// A.\n#[derive(Debug)]\n#[non_exhaustive]\npub enum A {\n    B,\n}\n\n// Why.\npub struct Closed(pub u32);\n\
                pub struct Private(u32);\npub struct Marker;\n#[derive(Debug)]\n// Why.\npub struct Config {\n    /// C.\n    \
                #[serde(default)]\n    pub a: u32,\n    b: u32,\n}\n\nsetters! {\n    impl Config {\n        a: u32,\n    }\n}\n";
    let found = types(text);
    let open: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.is_open())).collect();
    assert_eq!(open, [("A", false), ("Closed", true), ("Private", false), ("Marker", true), ("Config", false)]);
    let fields: Vec<_> = found[4].fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(fields, ["a", ""]);
    assert_eq!(setters(text), [("Config".to_owned(), vec!["a".to_owned()])]);
}
