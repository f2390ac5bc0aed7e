/* What a person does with a flame graph, put at the end of its file by test_seeing.c: points, zooms, goes back, searches.
   The document's element gets what went wrong as its attribute data-driven, or "well". */
(function () {
var boxes = [].slice.call(document.querySelectorAll('svg.e')), wrong = [];
function check(c, what) { if (!c) wrong.push(what); }
function get(selector) { return document.querySelector(selector); }
function name(e) { return e.querySelector('text').textContent; }
function number(e, attribute) { return parseFloat(e.getAttribute(attribute)); }
function tell(e, event) { e.dispatchEvent(new MouseEvent(event, { bubbles: true })); }
function hidden() { return boxes.filter(function (e) { return e.style.display === 'none'; }).length; }
function places() { return boxes.map(function (e) { return number(e, 'x').toFixed(6) + ' ' + number(e, 'width').toFixed(6); }).join(); }
/* Of all the width, what is covered by at least one of them. */
function covered(some) {
  var end = 0, sum = 0;
  some.map(function (e) { return [number(e, 'x'), number(e, 'x') + number(e, 'width')]; })
    .sort(function (a, b) { return a[0] - b[0]; })
    .forEach(function (a) { sum += Math.max(0, a[1] - Math.max(a[0], end)); end = Math.max(end, a[1]); });
  return sum;
}
try {
  var before = places(), verdict = get('.v').textContent;
  var one = boxes.filter(function (e) { return name(e) === 'backward'; })[0];
  tell(one, 'mouseover');
  check(get('.v').textContent === one.querySelector('title').textContent, 'pointing shows no title');
  tell(one, 'mouseout');
  check(get('.v').textContent === verdict, 'the verdict does not come back');

  tell(one, 'click');
  check(number(one, 'x') === 0 && number(one, 'width') === 100 && hidden() > 0 && one.style.display === '', 'no zoom');
  tell(boxes[0], 'click');
  check(name(boxes[0]) === 'all' && places() === before && hidden() === 0, 'no way back');

  get('input').value = 'C';
  get('input').dispatchEvent(new Event('input'));
  var hits = boxes.filter(function (e) { return name(e).toLowerCase().indexOf('c') >= 0; });
  check(hits.length > 9 && hits.length < boxes.length, hits.length + ' of ' + boxes.length + ' names have a c');
  check(boxes.every(function (e) { return e.classList.contains('x') === (hits.indexOf(e) >= 0); }), 'others are highlighted');
  check(Math.abs(parseFloat(get('.m').textContent) - covered(hits)) < 0.1, get('.m').textContent + ' instead of ' + covered(hits));
  get('input').value = '';
  get('input').dispatchEvent(new Event('input'));
  check(get('.m').textContent === '' && !get('.x'), 'the search does not end');
} catch (e) { check(0, String(e)); }
document.documentElement.setAttribute('data-driven', wrong.join('; ') || 'well');
}());
