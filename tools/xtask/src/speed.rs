//! Generation of `docs/speed.svg` from the results.

use plotters::prelude::*;
use std::error::Error;
use std::ops::RangeInclusive;
use std::path::Path;

/// The file, from the root of the repository.
pub const FILE: &str = "docs/speed.svg";

/// A line of the picture.
struct Line {
    name: &'static str,
    /// The file of results.
    file: &'static str,
    /// The column of this library's time in a table of the file; `None` for rows of `oxccl perf
    /// --json`.
    column: Option<usize>,
    colour: RGBColor,
}

/// The text before the table for host memory, and the beginning of the table, whose first columns
/// are sizes and Open MPI's times.
const TABLE: [&str; 2] = ["\n8 ranks\n", "| bytes |"];

const LINES: [Line; 5] = [
    Line {
        name: "8 processes, ncclMemAlloc, beside Open MPI",
        file: "docs/results/host-2026-11-21.md",
        column: Some(3),
        colour: RGBColor(46, 139, 87),
    },
    Line {
        name: "8 processes, malloc, beside Open MPI",
        file: "docs/results/host-2026-11-21.md",
        column: Some(2),
        colour: RGBColor(199, 125, 10),
    },
    Line {
        name: "2 GPUs, beside NCCL",
        file: "docs/results/two-h100-stream-2026-11-27.json",
        column: None,
        colour: RGBColor(27, 108, 168),
    },
    Line {
        name: "4 GPUs, beside NCCL",
        file: "docs/results/four-h100-stream-2026-11-27.json",
        column: None,
        colour: RGBColor(209, 73, 91),
    },
    Line {
        name: "4 GPUs, graphs, beside NCCL",
        file: "docs/results/four-h100-graph-2026-11-27.json",
        column: None,
        colour: RGBColor(120, 94, 170),
    },
];

/// The largest size that is drawn.
const MOST: f64 = (128 << 20) as f64;

/// Sizes in bytes, and how many times as fast this library is.
type Ratios = Vec<(f64, f64)>;

/// Reads the ratios from a table, of which a column has this library's times.
fn of_table(text: &str, column: usize) -> Option<Ratios> {
    let [above, first] = TABLE;
    let (_, rest) = text.split_once(above)?;
    let rows = rest.lines().skip_while(|line| !line.starts_with(first)).skip(2);
    let ratio = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let number = |column: usize| cells.get(column)?.parse::<f64>().ok();
        Some((number(0)?, number(1)? / number(column)?))
    };
    rows.take_while(|line| line.starts_with('|')).map(ratio).collect()
}

/// Reads the ratios of all-reduces out of place from rows: of the least times, as others worked on
/// the processors meanwhile.
fn of_rows(text: &str) -> Option<Ratios> {
    let document: serde_json::Value = serde_json::from_str(text).ok()?;
    let rows = document["rows"].as_array()?.iter();
    let mut rows = rows.filter(|row| row["collective"] == "all_reduce" && row["in_place"] == false);
    let mut ratios = Vec::new();
    // A row of the other library follows each of this one.
    while let Some(ours) = rows.next() {
        let theirs = rows.next().filter(|theirs| theirs["bytes"] == ours["bytes"])?;
        if ours["lib"] != "oxccl" || theirs["lib"] == "oxccl" {
            return None;
        }
        let time = |row: &serde_json::Value| row["time_us_min"].as_f64();
        ratios.push((ours["bytes"].as_f64()?, time(theirs)? / time(ours)?));
    }
    Some(ratios)
}

impl Line {
    /// Returns the points of the line: the size, and how many times as fast this library is.
    fn points(&self, root: &Path) -> Result<Vec<(i32, i32)>, Box<dyn Error>> {
        let text = std::fs::read_to_string(root.join(self.file))?;
        let ratios = match self.column {
            Some(column) => of_table(&text, column),
            None => of_rows(&text),
        };
        let ratios = ratios.filter(|ratios| !ratios.is_empty());
        let ratios = ratios.ok_or_else(|| format!("{}: no times where expected", self.file))?;
        let drawn = ratios.into_iter().filter(|(bytes, _)| *bytes <= MOST);
        Ok(drawn.map(|(bytes, ratio)| (place(bytes), place(ratio))).collect())
    }
}

/// The length of a power of two on both axes.
const POWER: i32 = 1000;

/// Returns the place of a number on an axis.
fn place(number: f64) -> i32 {
    (number.log2() * f64::from(POWER)).round() as i32
}

fn size_text(place: i32) -> String {
    match place / POWER {
        power @ 0..10 => format!("{} B", 1 << power),
        power @ 10..20 => format!("{} KiB", 1 << (power - 10)),
        power => format!("{} MiB", 1 << (power - 20)),
    }
}

fn ratio_text(place: i32) -> String {
    format!("{} ×", 2f64.powi(place / POWER))
}

/// Returns the text of the file.
pub fn text(root: &Path) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (800, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let marks = |range: RangeInclusive<i32>, step| {
            range.step_by(step).map(|power| power * POWER).collect::<Vec<i32>>()
        };
        let sizes = (3 * POWER..28 * POWER).with_key_points(marks(3..=27, 4));
        let ratios = (-3 * POWER / 2..9 * POWER / 2).with_key_points(marks(-1..=4, 1));
        let mut chart = ChartBuilder::on(&area)
            .caption("All-reduce: how many times as fast as the other library", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(sizes, ratios)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|power| size_text(*power))
            .y_label_formatter(&|power| ratio_text(*power))
            .x_desc("size of the buffer")
            .label_style(("sans-serif", 13))
            .draw()?;
        chart.draw_series([PathElement::new([(3 * POWER, 0), (28 * POWER, 0)], BLACK)])?;
        for line in &LINES {
            let (points, style) = (line.points(root)?, line.colour.stroke_width(2));
            chart
                .draw_series(LineSeries::new(points, style).point_size(3))?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font(("sans-serif", 13))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// Writes the file.
pub fn write(root: &Path) -> Result<(), Box<dyn Error>> {
    Ok(std::fs::write(root.join(FILE), text(root)?)?)
}
