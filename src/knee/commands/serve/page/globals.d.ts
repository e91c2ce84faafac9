// Types for `make lint`, which checks the page's scripts; the browser does not read this file.

/** d3 and Observable Plot come as scripts of their own (vendor/). */
declare const d3: any;

interface Window {
  Plot: any;
  knee_app: any;
  knee_timings: object[];
}

/** The drawing of a figure knows its figure. */
interface Element {
  figure?: import("./charts.js").Figure;
}

/** A column of a table or of a chart's values. */
interface Column {
  title: any;
  show: (row: any) => any;
  key?: string;
  number?: boolean;
  sort?: (row: any) => any;
  sorted?: string;
  [more: string]: any;
}
