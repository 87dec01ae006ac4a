//! The transactions: a generated file of comma-separated values, and the sums of its parts.
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
};

use steadfast::entropy::Entropy;

use crate::{Result, args::Args};

/// Cents by customer.
pub(crate) type Totals = BTreeMap<String, i64>;

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Part {
    pub(crate) item: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

/// Writes the transactions; returns their parts and the directly computed totals.
pub(crate) fn generate(args: &Args, path: &Path) -> Result<(Vec<Part>, Totals)> {
    let entropy = Entropy::from_seed(args.seed);
    let mut file = BufWriter::new(File::create(path)?);
    let (mut parts, mut totals) = (Vec::new(), Totals::new());
    let (mut from, mut at) = (0, 0);
    for row in 0..args.rows {
        let customer = format!("customer-{:04}", entropy.up_to(999));
        // Includes refunds.
        let cents = entropy.up_to(20_000) as i64 - 1_000;
        let line = format!("{row},{customer},{cents}\n");
        file.write_all(line.as_bytes())?;
        at += line.len() as u64;
        *totals.entry(customer).or_default() += cents;
        if (row + 1) % args.item == 0 || row + 1 == args.rows {
            parts.push(Part { item: parts.len() as u64, from, bytes: at - from });
            from = at;
        }
    }
    file.flush()?;
    Ok((parts, totals))
}

/// Adds up a part of the file.
pub(crate) fn add_up(path: &Path, part: Part) -> Result<Totals> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(part.from))?;
    let mut text = String::new();
    file.take(part.bytes).read_to_string(&mut text)?;
    let mut totals = Totals::new();
    for line in text.lines() {
        let mut fields = line.split(',').skip(1);
        let (Some(customer), Some(cents)) = (fields.next(), fields.next()) else {
            return Err(format!("no transaction: {line:?}").into());
        };
        *totals.entry(customer.to_owned()).or_default() += cents.parse::<i64>()?;
    }
    Ok(totals)
}

/// Adds some totals to others.
pub(crate) fn merge(all: &mut Totals, some: Totals) {
    for (customer, cents) in some {
        *all.entry(customer).or_default() += cents;
    }
}
