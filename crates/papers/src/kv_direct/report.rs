//! Figures as Markdown tables, or as an object for each row.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// A cell of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A measured number, with this many digits behind the point.
    Number(f64, usize),
    /// Nothing.
    Empty,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Number(number as f64, 0)
    }
}

impl Cell {
    /// A number with a digit behind the point.
    pub fn tenths(number: f64) -> Self {
        Self::Number(number, 1)
    }

    /// A share, in percent.
    pub fn percent(share: f64) -> Self {
        Self::Number(share * 100.0, 0)
    }

    fn show(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number, digits) => format!("{number:.digits$}"),
            Self::Empty => String::new(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Number(number, _) => (*number).into(),
            Self::Empty => Value::Null,
        }
    }
}

/// A figure or table of the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The number of the figure, and its part.
    pub figure: &'static str,
    /// Its title.
    pub title: String,
    /// The heads of its columns, which are the names of fields.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub fn new(
        figure: &'static str,
        title: impl Into<String>,
        columns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { figure, title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let row: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "{}", self.title);
        self.rows.push(row);
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}: {}\n\n", self.figure, self.title);
        let _ = writeln!(text, "| {} |", self.columns.join(" | "));
        let _ = writeln!(text, "|{}", " ---: |".repeat(self.columns.len()));
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::show).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text.push('\n');
        text
    }

    /// As an object a line.
    pub fn json(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let cells = self.columns.iter().zip(row);
            let mut object: Map<String, Value> =
                cells.map(|(column, cell)| (column.clone(), cell.json())).collect();
            object.insert("figure".into(), self.figure.into());
            let _ = writeln!(text, "{}", Value::Object(object));
        }
        text
    }
}
