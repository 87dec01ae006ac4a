//! The language of the documentation, as far as it can be counted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod sources;

use std::{fs, path::Path};

use sources::texts;

/// Words that begin a relative clause. A doc comment begins with a verb or a noun instead.
const RELATIVE: [&str; 14] = [
    "What",
    "Who",
    "Whose",
    "Whoever",
    "Where",
    "Whether",
    "How",
    "Which",
    "That which",
    "For how",
    "By what",
    "Of what",
    "Since when",
    "Until when",
];

/// Widest line of documentation, in characters. Rows of tables cannot be broken and are exempt.
const COLUMNS: usize = 100;

fn is_relative(opening: &str) -> bool {
    let as_many = ["As many", "As much", "As long", "As often"];
    RELATIVE.iter().chain(&as_many).any(|words| {
        opening.strip_prefix(words).is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
    })
}

/// The first line of each block of `///`.
fn openings(text: &str) -> Vec<&str> {
    let mut before = false;
    let mut openings = Vec::new();
    for line in text.lines() {
        let doc = line.trim_start().strip_prefix("///").filter(|rest| !rest.starts_with('/')).map(str::trim);
        openings.extend(doc.filter(|line| !before && !line.is_empty()));
        before = doc.is_some();
    }
    openings
}

#[test]
fn at_most_two_in_a_hundred_doc_comments_open_with_a_relative_clause() {
    let texts = texts();
    let (mut all, mut relative) = (0, Vec::new());
    for (path, text) in &texts {
        let openings = openings(text);
        all += openings.len();
        relative.extend(openings.into_iter().filter(|line| is_relative(line)).map(|line| format!("{path}: {line}")));
    }
    assert!(relative.len() * 50 <= all, "{} of {all}:\n{}", relative.len(), relative.join("\n"));
}

#[test]
fn no_line_of_documentation_is_wider_than_a_hundred_columns() {
    let mut wide = Vec::new();
    for (path, text) in texts() {
        for (number, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            let doc = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!"));
            if doc.is_some_and(|doc| !doc.trim_start().starts_with('|')) && line.chars().count() > COLUMNS {
                wide.push(format!("{path}:{}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// The words of the page of words, as a reader looks them up: letters alone.
fn words(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let word = |row: &str| row.split('|').nth(1).unwrap_or_default().to_lowercase();
    rows.map(|row| word(row).chars().filter(|next| next.is_alphanumeric()).collect()).collect()
}

#[test]
fn the_page_of_words_is_in_alphabetical_order() {
    let words = words(include_str!("../src/_docs/words.md"));
    assert!(words.len() > 100);
    let unordered: Vec<_> = words.windows(2).filter(|pair| pair[0] >= pair[1]).collect();
    assert!(unordered.is_empty(), "{unordered:#?}");
}

/// The paths of the pages below `folder`.
fn pages(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let parts = path.strip_prefix(root).unwrap().iter().map(|part| part.to_str().unwrap());
            found.push(parts.collect::<Vec<_>>().join("/"));
        }
    }
}

#[test]
fn the_readme_and_the_documentation_lead_to_each_page() {
    let (readme, tree) = (include_str!("../README.md"), include_str!("../src/_docs/mod.rs"));
    let mut found = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/_docs"), &mut found);
    assert!(found.len() > 15);
    found.retain(|page| {
        let included = format!("include_str!(\"{}\")", page.trim_start_matches("src/_docs/"));
        !readme.contains(&format!("({page})")) || !tree.contains(&included)
    });
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_count_finds_what_it_is_for() {
    assert!(is_relative("Who goes wakes the next.") && is_relative("As many as fit."));
    assert!(!is_relative("Whole milliseconds.") && !is_relative("Returns what is left."));
    assert_eq!(openings("/// One.\n/// Two.\nfn f() {}\n//// no\n/// Three."), ["One.", "Three."]);
}
