//! Tables in Markdown.

pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heads: Vec<String>) -> Self {
        Self { heads, rows: Vec::new() }
    }

    pub fn of(heads: &[&str]) -> Self {
        Self::new(heads.iter().map(|&head| head.to_owned()).collect())
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "| {} |", self.heads.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.heads.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// Returns a count with three digits that count, in groups of three.
pub fn grouped(count: f64) -> String {
    if count < 100.0 && count.fract() > 0.05 {
        return format!("{count:.1}");
    }
    let digits = (count.max(1.0).log10().floor() as i32 - 2).max(0);
    let unit = 10f64.powi(digits);
    let digits = format!("{:.0}", (count / unit).round() * unit);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
